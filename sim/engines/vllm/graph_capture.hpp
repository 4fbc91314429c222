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

class GraphCapture {
 public:
  // The card must outlive the captures.
  GraphCapture(const Deployment& deployment, int stage, CardMemory& memory);

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
  struct Mode {
    GraphMode mode;
    std::vector<std::int64_t> sizes;  // descending
  };

  bool capture(GraphMode mode, std::int64_t size);
  bool warm_up(const opgraph::Program& program, std::int64_t size);
  bool make_static_output(std::int64_t size);
  bool record(GraphMode mode, const opgraph::Program& program, std::int64_t size);
  [[nodiscard]] Bytes driver_bytes(GraphMode mode) const;
  [[nodiscard]] Bytes residual(std::size_t graphs) const;
  bool add_residual();

  const Deployment& deployment_;
  CardMemory& memory_;
  int layers_ = 0;
  std::vector<Mode> modes_;
  opgraph::Program first_;  // with the stream's cuBLAS workspace
  opgraph::Program piecewise_;
  std::optional<opgraph::Program> full_;  // none: the same as beside pieces
  bool stream_is_new_ = true;
  std::optional<CardMemory::Tensor> static_output_;
  std::vector<CapturedGraph> captured_;
};

}  // namespace oomcast::vllm
