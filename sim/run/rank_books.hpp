// The memory of one rank while it serves: its step memory, peaks and timeline, fed with the shape
// of each step.
#pragma once

#include <memory>
#include <optional>

#include "sim/run/record.hpp"
#include "sim/run/step_memory.hpp"
#include "sim/run/timeline.hpp"

namespace oomcast {

// What a timeline row says besides memory.
struct ServingCounts {
  Blocks kv_used;
  Blocks kv_cached;
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t preemptions = 0;
};

class RankBooks {
 public:
  // `blocks` of the startup; see make_step_memory() for the rest.
  RankBooks(const vllm::Deployment& deployment, vllm::StageState stage, Blocks blocks,
            Detail detail, bool remembers);

  // Posts the tensors of steps. Returns the outcome if the card has no room for them.
  std::optional<Outcome> run(const StepRun& steps);
  // Whether steps of this shape may be run as one.
  [[nodiscard]] bool repeats(Tokens tokens, std::int64_t rows) const {
    return steps_->repeats(tokens, rows);
  }
  [[nodiscard]] bool shows_failure() const { return steps_->shows_failure(); }
  // Rows of the timeline for the step run last.
  void sample(SimTime at, const ServingCounts& counts);

  // End of the bucket of `at`: until then one first and one last row of like steps are enough.
  [[nodiscard]] SimTime bucket_end(SimTime at) const { return timeline_.bucket_end(at); }
  [[nodiscard]] Bytes block_bytes() const { return block_bytes_; }
  [[nodiscard]] Bytes pool_bytes() const;
  // Recounts the books and hands over what was recorded.
  [[nodiscard]] RankRecord finish(int first_rank, int alike);

 private:
  std::unique_ptr<vllm::StageState> stage_;  // stays where it is: the step memory refers to it
  std::unique_ptr<StepMemory> steps_;
  Bytes block_bytes_;
  Timeline timeline_;
  Tokens step_tokens_;
};

}  // namespace oomcast
