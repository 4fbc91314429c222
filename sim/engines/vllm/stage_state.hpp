// What a startup leaves of one pipeline stage.
#pragma once

#include <optional>
#include <vector>

#include "sim/engines/rank_state.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/step_program.hpp"

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
  std::optional<Blocks> state_blocks;            // where they were too few
  Bytes graph_estimate;                          // what the version's trial capture makes of it
  std::optional<Bytes> capture_drop;             // free memory lost during capture, once it is over
  std::vector<CardMemory::Tensor> first_tables;  // block tables until the groups' own are made
};

}  // namespace oomcast::vllm
