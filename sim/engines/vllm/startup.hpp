// vLLM's startup as a simulation: each phase posts what the engine allocates, and the KV budget
// comes out of the simulated measurements, as it does in the engine (facts: vLLM 2).
//
//   context > communicators > load > profile > kv > capture > warmup > ready
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "sim/engines/outcome.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/graph_memory.hpp"
#include "sim/engines/vllm/resident.hpp"
#include "sim/ledger/ledger.hpp"

namespace oomcast::vllm {

// The books of one pipeline stage; all its tensor-parallel ranks are alike.
struct StageState {
  explicit StageState(Bytes device_total) : ledger(device_total) {}

  int stage = 0;
  StageRole role;
  Ledger ledger;
  PeakTracker peaks;
  std::vector<PhaseRecord> phases;
  KvLayout kv;
  GraphMemory graphs;

  // Measurements of the startup.
  Bytes requested;
  Bytes weights;
  Bytes activation_peak;
  Bytes non_torch;
  Bytes consumed;
  Bytes available_kv;
  Bytes capture_drop;             // free memory lost during capture
  opgraph::LiveSet profile_peak;  // what made the peak of the profile run
};

struct Startup {
  std::vector<StageState> stages;
  Blocks blocks;  // of every rank, the null block included
  EngineReport report;
  Outcome outcome;
};

// Bytes of a leaf as a plan shows them: what stands at `ready`, and for runtime and workspace
// leaves the peak of the profile run.
Bytes shown_at_ready(const StageState& stage, Leaf leaf);

Startup simulate_startup(const Deployment& deployment);

}  // namespace oomcast::vllm
