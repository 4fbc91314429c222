// Startup of one pipeline stage, call for call on its card: what vLLM's worker allocates in each
// phase, and what it measures of it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/engines/rank_state.hpp"
#include "sim/engines/startup_card.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/graph_capture.hpp"
#include "sim/engines/vllm/step_program.hpp"
#include "sim/ledger/card_memory.hpp"

namespace oomcast::vllm {

// The books of one pipeline stage; all its tensor-parallel ranks are alike.
struct StageState : RankState {
  StageState(const Deployment& deployment, int stage_number);

  int stage = 0;
  StageRole role;
  KvLayout kv;

  // Measurements of the startup.
  Bytes requested;
  Bytes weights;
  Bytes profile_increase;  // blocks allocated at the profile run's highest moment, above its start
  Bytes activation_peak;   // what the version's log calls it
  Bytes non_torch;
  Bytes consumed;
  Bytes available_kv;
  std::optional<Bytes> kv_needed;  // by one request, where it was too much
  std::optional<Tokens> longest_that_fits;
  std::optional<Blocks> state_blocks;  // where they were too few
  Bytes graph_estimate;                // what the version's trial capture makes of it
  Bytes capture_drop;                  // free memory lost during capture
};

class StageStartup {
 public:
  StageStartup(const Deployment& deployment, int stage);

  // Everything up to the KV budget. False when the startup died; see outcome().
  bool measure();
  // The rest, with the number of blocks all ranks agreed on.
  bool serve(Blocks blocks);
  // Whether `available` holds one request of max_model_len; fails as the engine's check does.
  bool check_kv(Bytes available);
  // Whether `blocks` hold a state for each sequence of a full graph, where the version asks.
  bool check_state_blocks(Blocks blocks);

  [[nodiscard]] const Outcome& outcome() const { return card_.outcome(); }
  StageState& state() { return state_; }

 private:
  // Phases.
  bool context();
  bool communicators();
  bool first_snapshot();
  bool load();
  bool profile();
  bool budget();
  bool kv(Blocks blocks);
  bool capture();
  bool warm_up();
  bool ready();

  // Pieces of phases.
  bool load_weights();
  bool run_profile(const opgraph::StepShape& shape);
  GraphCapture& graphs();
  bool trial_capture();
  bool appear_outside_torch();

  bool run(const opgraph::Program& program, const opgraph::StepShape& shape);

  [[nodiscard]] std::int64_t sampled_rows() const;

  const Deployment& deployment_;
  StageState state_;
  std::optional<GraphCapture> graphs_;
  StartupCard card_;
  Bytes free_at_snapshot_;
  Bytes allocated_at_profile_;
  Bytes highest_allocated_;
  bool profiling_ = false;
};

}  // namespace oomcast::vllm
