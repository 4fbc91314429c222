// The host tier of the KV cache that an OffloadingConnector keeps (facts: vLLM PD 5): one region of
// pinned host memory for all ranks of an engine, in chunks.
//
//   chunk = blocks x KV bytes of a block x ranks, rounded up to 4096
//   chunks = size / chunk, rounded down
//
// A chunk holds one KV cache group's blocks. Latent attention split over tensor-parallel ranks
// alone keeps one copy for all ranks from 0.27 on (vllm-project/vllm#50301, merged in the summer of
// 2026; the release is told by its date and may be one off).
#pragma once

#include <cstdint>
#include <optional>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/deployment.hpp"

namespace oomcast::vllm {

struct HostPool {
  Bytes block;              // KV of one block on one rank; that of the fullest stage
  std::int64_t ranks = 1;   // of the engine
  std::int64_t copies = 1;  // ranks whose KV a chunk holds
  std::int64_t blocks_per_chunk = 1;
  Bytes chunk;
  std::int64_t chunks = 0;
  Tokens block_tokens;

  [[nodiscard]] Bytes bytes() const { return chunk * chunks; }
  // A rank's books hold an equal part of the region.
  [[nodiscard]] Bytes rank_bytes() const { return Bytes{bytes().count() / ranks}; }

  // What the scheduler's connector needs to know of it.
  void settle(ConnectorConfig& connector) const;
};

// nullopt: the launch has no host tier.
std::optional<HostPool> host_pool(const Deployment& deployment);

// Adds why the engine would refuse the tier, or why it is not modelled.
void check_host_pool(const Deployment& deployment, Problems& problems);

}  // namespace oomcast::vllm
