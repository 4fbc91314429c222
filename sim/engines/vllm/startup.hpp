// vLLM's startup as a simulation: each phase posts what the engine allocates, and the KV budget
// comes out of the simulated measurements, as it does in the engine (facts: vLLM 2).
//
//   context > communicators > load > profile > kv > capture > warmup > ready
#pragma once

#include <vector>

#include "sim/engines/outcome.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/stage_startup.hpp"

namespace oomcast::vllm {

struct Startup {
  std::vector<StageState> stages;
  Blocks blocks;         // of every rank, the null block included
  Tokens max_model_len;  // in force from here on
  EngineReport report;
  Outcome outcome;
};

// With a memo, work that alike deployments did before is not done again.
Startup simulate_startup(const Deployment& deployment, StartupMemo* memo = nullptr);

}  // namespace oomcast::vllm
