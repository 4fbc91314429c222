// CUDA graphs of one stage: each captured size runs once to warm up and once into the graphs'
// private pool; the driver takes memory for the instantiated graph and its nodes (facts: vLLM
// startup 5-8, runtime 11).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/engines/rank_state.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/step_program.hpp"
#include "sim/ledger/card_memory.hpp"

namespace oomcast::vllm {

enum class GraphMode : std::uint8_t { kPiecewise, kFull };
std::string_view name_of(GraphMode mode);

// What the captures of a stage are made of, whatever the card.
class CapturePrograms {
 public:
  struct Mode {
    GraphMode mode = GraphMode::kPiecewise;
    std::vector<std::int64_t> sizes;  // descending
    Bytes driver;                     // of one graph, not rounded
  };

  CapturePrograms(const Deployment& deployment, int stage);

  [[nodiscard]] const std::vector<Mode>& modes() const { return modes_; }
  // The first run on a stream makes the stream's cuBLAS workspace.
  [[nodiscard]] const opgraph::Program& first() const { return first_; }
  [[nodiscard]] const opgraph::Program& of(GraphMode mode, std::int64_t size) const;
  // Of one token in the shared experts that run on a stream of their own: gate and up, their
  // product, the output; empty: there are none.
  [[nodiscard]] const std::vector<Bytes>& beside() const { return beside_; }
  // Of all that decides what captures take.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  opgraph::Program first_;
  opgraph::Program piecewise_;
  std::vector<Bytes> beside_;
  std::optional<opgraph::Program> full_;   // none: the same as beside pieces
  std::optional<opgraph::Program> whole_;  // where some batch is too large to split keys
  std::int64_t decode_tokens_;
  std::int64_t most_sequences_;
  std::vector<Mode> modes_;
};

// What captures of one kind take on a card that has room for them.
struct CaptureEffect {
  std::vector<CapturedGraph> graphs;
  Bytes highest;            // device memory in use beyond what was before, at the worst moment
  CardMemory::Sums change;  // of what is in use, from before to after
};

struct CaptureEffects {
  CaptureEffect trial;  // its graphs dropped again
  CaptureEffect all;    // after the trial, where the version makes one
};

// Both, one after the other on an empty card.
CaptureEffects simulate_captures(const Deployment& deployment, const CapturePrograms& programs);

class GraphCapture {
 public:
  // Programs and card must outlive the captures. `known`: what these captures do, if simulated
  // before.
  GraphCapture(const Deployment& deployment, const CapturePrograms& programs, CardMemory& memory,
               const CaptureEffects* known = nullptr);

  // Captures the sizes of all modes in the engine's order, largest first; the first runner's
  // `trial` takes the two largest of each mode only. False after an out-of-memory (the card's
  // message tells).
  [[nodiscard]] bool run(bool trial);
  [[nodiscard]] const std::vector<CapturedGraph>& captured() const { return captured_; }
  // What a trial's samples let this version's engine expect of all captures.
  [[nodiscard]] Bytes estimate() const;
  // Drops the trial's graphs.
  void release();

 private:
  [[nodiscard]] bool has_room_for(const CaptureEffect& effect) const;
  void apply(const CaptureEffect& effect);
  bool capture(const CapturePrograms::Mode& mode, std::int64_t size);
  Bytes driver_of(const CapturePrograms::Mode& mode);
  bool warm_up(const opgraph::Program& program, std::int64_t size);
  bool run_beside(std::int64_t size);
  bool record(GraphMode mode, const opgraph::Program& program, std::int64_t size);
  [[nodiscard]] Bytes residual(std::size_t graphs) const;

  const Deployment& deployment_;
  const CapturePrograms& programs_;
  CardMemory& memory_;
  const CaptureEffects* known_;
  bool from_memory_ = false;  // the last run was
  bool stream_is_new_ = true;
  bool ran_beside_ = false;
  std::vector<CardMemory::Tensor> made_for_stream_;  // by its first run, and kept
  std::vector<CapturedGraph> captured_;
  Bytes driver_exact_;  // of the graphs so far, before it is rounded to the driver's units
};

}  // namespace oomcast::vllm
