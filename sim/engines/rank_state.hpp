// The memory of one rank, and of those alike, through an engine's startup.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/engines/outcome.hpp"
#include "sim/ledger/card_memory.hpp"
#include "sim/opgraph/program.hpp"

namespace oomcast {

struct CapturedGraph {
  std::string_view mode;  // static text: "piecewise", "full", "prefill" …
  std::int64_t size = 0;  // tokens or requests, as the mode counts
  Bytes pool_growth;      // of PyTorch's private pool
  Bytes driver;           // graph and nodes, outside PyTorch
  Bytes warm_up_peak;     // of the warm-up run, above what was allocated before
  Bytes free_drop;        // device memory gone since before the warm-up; may be negative
  Bytes record_drop{};    // ... and since after it: what it left cached has been returned
};

struct RankState {
  RankState(Bytes total, int rank, int alike, const allocator::AllocatorSettings& settings)
      : first_rank(rank), ranks(alike), memory(total, rank, settings) {}

  int first_rank = 0;
  int ranks = 1;  // how many ranks it stands for, from first_rank on
  CardMemory memory;
  PeakTracker peaks;
  std::vector<PhaseRecord> phases;
  std::vector<CapturedGraph> graphs;  // in order of capture
  opgraph::LiveSet profile_peak;      // what made the peak of a profile run, if there is one
  int kv_groups = 1;                  // groups of layers with a block table each
};

// Bytes of a leaf as a plan shows them: what stands at `ready`, and for runtime and workspace
// leaves the highest during startup.
Bytes shown_at_ready(const RankState& rank, Leaf leaf);

}  // namespace oomcast
