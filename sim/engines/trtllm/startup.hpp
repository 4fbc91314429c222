// TensorRT-LLM's startup as a simulation (facts: TensorRT-LLM 2 and 3): weights; a dry run with a
// temporary KV cache and graphs, whose peak decides the budget; the real cache; graphs again.
//
//   context > communicators > load > profile > kv > capture > warmup > ready
#pragma once

#include <vector>

#include "sim/engines/rank_state.hpp"
#include "sim/engines/trtllm/deployment.hpp"

namespace oomcast::trtllm {

struct StageState : RankState {
  StageState(const Deployment& deployment, int stage_number);

  int stage = 0;
  Bytes weights;            // allocated by PyTorch once they are loaded
  Bytes dynamic;            // the dry run's peak above them, inside PyTorch
  Bytes outside_torch;      // at the dry run's end
  Bytes available;          // for the KV cache
  std::int64_t tokens = 0;  // that the budget holds
};

struct Startup {
  std::vector<StageState> stages;
  EngineReport report;
  Outcome outcome;
};

Startup simulate_startup(const Deployment& deployment);

}  // namespace oomcast::trtllm
