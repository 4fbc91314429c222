// The host tier of the KV cache, --enable-hierarchical-cache (facts: runtime 9;
// mem_cache/pool_host/ base.py, hicache_auto_size.py and memory_pool_host.py before): a pool of
// pinned host memory on each rank that mirrors the rank's pools.
//
//   slots = ratio x slots of the pool, or GB x 1e9 / bytes of a token on the stage with most of
//   them pages = slots / P + 1, rounded down before the 1 is added
//
// A given size is divided between the pools of full and of windowed layers as their bytes are.
// Copies to a host pool in page order (page_first, the default since 0.5.13) pass through a buffer
// of 64 pages on the card, made once the graphs are captured.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"
#include "sim/engines/sglang/cache_plan.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/engines/sglang/resident.hpp"

namespace oomcast::sglang {

// Of one rank.
struct HostPool {
  Tokens tokens;         // slots beside the pool of full layers
  Tokens window_tokens;  // ... beside the window pool; 0: none
  Bytes bytes;           // pinned
  Tensors staging;       // on the card
};

bool has_host_tier(const Deployment& deployment);

// For the pools of `plan` on this stage; nullopt without a host tier. The engine's refusal where
// the host (`--assume host_memory_gib`) is too small.
std::variant<std::optional<HostPool>, CacheRefusal> host_pool(const Deployment& deployment,
                                                              const CachePlan& plan, int stage);

// Adds what the engine refuses of the tier's settings, and warnings of what of it is not modelled.
void check_host_tier(Deployment& deployment, Problems& problems);

// The largest --hicache-size with which the host tier starts; nullopt if nothing is known of the
// host, or there is no room.
std::optional<std::int64_t> host_gigabytes_that_fit(const Deployment& deployment);

}  // namespace oomcast::sglang
