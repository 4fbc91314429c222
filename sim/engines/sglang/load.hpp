// Calls to PyTorch's allocator while SGLang creates and loads a rank's tensors, in order: what is
// free afterwards depends on blocks that temporaries leave behind (facts: SGLang startup 11-13).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/ledger/classes.hpp"

namespace oomcast::sglang {

struct LoadStep {
  enum class Kind : std::uint8_t { kAllocate, kFree, kEmptyCache };
  Kind kind = Kind::kAllocate;
  std::uint32_t tensor = 0;  // numbers count the allocations from 0
  Bytes bytes;
  Leaf leaf = Leaf::kModelWeights;
};

struct LoadSequence {
  std::vector<LoadStep> steps;
  // Rope tables, in order of creation: which allocation, and their extents.
  struct RopeTable {
    std::uint32_t tensor = 0;
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    std::int64_t element_bytes = 4;
  };
  std::vector<RopeTable> tables;
  // Allocations that are given up once the pools are there.
  std::vector<std::uint32_t> dropped;
};

// Maps from logical to physical experts, made before anything is loaded.
LoadSequence expert_locations(const Deployment& deployment);
// Parameters and buffers; what post-processing adds and takes away.
LoadSequence load_sequence(const Deployment& deployment, int stage);

// The model's own draft layers, loaded apart, with an embedding and a head that are dropped for the
// target's once the draft's pool is there (eagle_worker_v2.py alloc_memory_pool).
LoadSequence draft_sequence(const Deployment& deployment, int stage);

// Rows that rope tables are extended to before the pools are sized: the context, what drafts may
// run ahead, a margin of 256, in steps of 128.
std::int64_t rope_rows_needed(const Deployment& deployment);

}  // namespace oomcast::sglang
