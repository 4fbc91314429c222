// CUDA graphs of one stage: each size runs twice to warm up and once into the graphs' private pool,
// prefills in pieces around attention, decodes whole; the driver takes memory for the instantiated
// graphs (facts: SGLang startup 3-5, runtime 11).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sim/engines/rank_state.hpp"
#include "sim/engines/sglang/cache_plan.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/engines/sglang/resident.hpp"
#include "sim/engines/sglang/step_program.hpp"

namespace oomcast::sglang {

class GraphCapture {
 public:
  // Everything given must outlive the captures.
  GraphCapture(const Deployment& deployment, int stage, const CachePlan& plan, CardMemory& memory);

  // Captured decode batches: those of the deployment that the request table has rows for.
  [[nodiscard]] const std::vector<std::int64_t>& decode_sizes() const { return decode_sizes_; }
  // Largest first. False after an out-of-memory (the card's message tells).
  [[nodiscard]] bool capture_prefills();
  [[nodiscard]] bool capture_decodes();
  // Of the model's own draft layers: steps of drafting after the first, then what takes in accepted
  // tokens.
  [[nodiscard]] bool capture_drafts();
  // What a calibration found a graph to take beyond that.
  [[nodiscard]] bool correct_decodes();
  [[nodiscard]] const std::vector<CapturedGraph>& captured() const { return captured_; }

 private:
  enum class Graph : std::uint8_t { kPrefill, kDecode, kDraft, kDraftExtend };

  bool make_static(const Tensors& tensors);
  bool make_logits_buffer();
  bool capture_all(Graph what);
  bool capture(Graph what, std::int64_t size);
  bool warm_up(Graph what, std::int64_t size);
  bool record(Graph what, std::int64_t size);
  bool run(const StepProgram& step, std::int64_t tokens, bool pieces);
  bool make(const opgraph::Program::Step& step, const opgraph::OpGraph& graph,
            const opgraph::StepShape& shape, std::vector<CardMemory::Tensor>& live);
  bool make_outputs(std::int64_t size);
  // What gated delta nets keep beyond the step.
  bool grow_scratch(bool decode, std::int64_t tokens);
  [[nodiscard]] Bytes driver_bytes(Graph what) const;
  [[nodiscard]] StepKind kind_of(Graph what, std::int64_t size) const;
  // Of a captured size, which counts tokens in prefills and requests elsewhere.
  [[nodiscard]] std::int64_t tokens_of(Graph what, std::int64_t size) const;
  const StepProgram& program(StepKind kind);

  const Deployment& deployment_;
  int stage_ = 0;
  const CachePlan& plan_;
  CardMemory& memory_;
  std::vector<std::int64_t> decode_sizes_;
  std::vector<std::pair<StepKind, StepProgram>> programs_;
  std::array<Bytes, 4> scratch_{};  // of gated delta nets, each as large as it ever was
  bool second_stream_used_ = false;
  bool stream_is_new_ = true;
  bool logits_made_ = false;
  bool modules_loaded_ = false;
  std::optional<CardMemory::Tensor> last_output_;  // of the warm-up before
  std::vector<CapturedGraph> captured_;
};

}  // namespace oomcast::sglang
