// Startup of one pipeline stage, call for call on its card: what vLLM's worker allocates in each
// phase, and what it measures of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/engines/rank_state.hpp"
#include "sim/engines/startup_card.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/graph_capture.hpp"
#include "sim/engines/vllm/stage_state.hpp"
#include "sim/engines/vllm/startup_memo.hpp"
#include "sim/engines/vllm/step_program.hpp"
#include "sim/ledger/card_memory.hpp"

namespace oomcast::vllm {

class StageStartup {
 public:
  // With a memo, what an alike deployment did before is taken from there.
  StageStartup(const Deployment& deployment, int stage, StartupMemo* memo = nullptr);

  // Everything up to the KV budget. False when the startup died; see outcome().
  bool measure();
  // The rest, with the number of blocks all ranks agreed on.
  bool serve(Blocks blocks);
  // Whether `available` holds one request of max_model_len; fails as the engine's check does.
  bool check_kv(Bytes available);
  // The longest sequence, up to max_model_len, for which so many bytes are enough; 0: none.
  [[nodiscard]] Tokens longest_that_fits(Bytes available) const;
  // As a failed check of the whole engine.
  void cannot_fit_any();
  // Whether `blocks` hold a state for each sequence of a full graph, where the version asks.
  bool check_state_blocks(Blocks blocks);

  [[nodiscard]] const Outcome& outcome() const { return card_.outcome(); }
  StageState& state() { return state_; }

 private:
  // Up to the KV budget, anew or from memory.
  bool measure_anew();
  bool remember();
  bool resume(const MeasuredStage& measured);

  // Phases.
  bool context();
  bool communicators();
  bool first_snapshot();
  bool communicators_within_budget();
  bool load();
  bool profile();
  bool budget();
  bool kv(Blocks blocks);
  bool capture();
  bool warm_up();
  bool ready();

  // Pieces of phases.
  bool load_weights();
  bool make_tensors(const models::RankWeights& weights);
  bool convert_tables();
  [[nodiscard]] KvLayout first_layout() const;
  bool make_block_tables(const KvLayout& layout, std::vector<CardMemory::Tensor>& tables);
  bool replace_block_tables();
  void release_outgrown();
  bool run_profile(const opgraph::StepShape& shape);
  GraphCapture& graphs();
  bool trial_capture();
  bool appear_outside_torch();

  bool run(const opgraph::Program& program, const opgraph::StepShape& shape);

  [[nodiscard]] std::int64_t sampled_rows() const;

  [[nodiscard]] Bytes requested() const;

  const Deployment& deployment_;
  StartupMemo* memo_;
  StageState state_;
  std::shared_ptr<const CapturePrograms> programs_;
  std::optional<GraphCapture> graphs_;
  StartupCard card_;
  Bytes free_at_snapshot_;
  Bytes allocated_at_profile_;
  Bytes highest_allocated_;
  Bytes left_by_trial_;
  Bytes allocated_by_trial_;
  std::optional<CardMemory::Tensor> sparse_buffers_;
  std::vector<std::pair<CardMemory::Tensor, Bytes>> unconverted_;  // and their bytes to be
  bool profiling_ = false;
};

}  // namespace oomcast::vllm
