// What the tensors of serving steps do to the memory of one rank, at one of two depths: sums by
// class, or every call of PyTorch's allocator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "sim/engines/outcome.hpp"
#include "sim/engines/step_peaks.hpp"
#include "sim/latency/step_time.hpp"
#include "sim/run/record.hpp"
#include "sim/run/timeline.hpp"

namespace oomcast {

// `--detail`.
enum class Detail : std::uint8_t {
  kClasses,    // the peaks of a step by class
  kAllocator,  // its allocations and frees in order
};

// Like steps, one after another; the starts in closed form.
struct StepRun : StepLoad {
  std::int64_t steps = 1;
  FineSpan start;  // of the first, since time 0
  // Of more than one step, which are all decodes: every step adds `tokens` to the context.
  StepTime time;
  Tokens context;  // of the first

  [[nodiscard]] SimTime start_of(std::int64_t step) const {
    const FineSpan before = step == 0 ? FineSpan{} : sum_of_steps(time, context, tokens, step);
    return SimTime{(start + before).floor()};
  }
};

class StepMemory {
 public:
  StepMemory() = default;
  virtual ~StepMemory() = default;
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;
  StepMemory(StepMemory&&) = delete;
  StepMemory& operator=(StepMemory&&) = delete;

  // Runs the steps; for more than one, repeats() must hold. Returns the outcome if the card has no
  // room for the first.
  virtual std::optional<Outcome> run(const StepRun& steps) = 0;
  // Whether any number of such steps, from now on, show and leave memory as the first of them.
  [[nodiscard]] virtual bool repeats(Tokens tokens, std::int64_t rows) const = 0;

  // The moments of the step run last that a timeline shows, in order: one or two.
  [[nodiscard]] virtual std::size_t moments() const { return 1; }
  // Fills in the memory of a row.
  virtual void show(std::size_t moment, TimelineRow& row) const = 0;
  // As long as it is the same, show() fills in the same; 0: that is not known.
  [[nodiscard]] virtual std::uint64_t postings() const { return 0; }

  // Whether run() left moments to show when memory ran out.
  [[nodiscard]] virtual bool shows_failure() const { return false; }
  // Adds what is known of the allocator.
  virtual void finish(RankRecord& /*record*/) {}
};

}  // namespace oomcast
