// SGLang's startup as a simulation: each phase posts what the engine allocates, and the size of the
// pools comes out of the simulated measurements, as it does in the engine (facts: SGLang 4).
//
//   context > communicators > load > kv > capture > warmup > ready
#pragma once

#include <vector>

#include "sim/engines/outcome.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/engines/sglang/stage_startup.hpp"

namespace oomcast::sglang {

struct Startup {
  std::vector<StageState> stages;
  CachePlan plan;  // of every rank
  EngineReport report;
  Outcome outcome;
};

Startup simulate_startup(const Deployment& deployment);

}  // namespace oomcast::sglang
