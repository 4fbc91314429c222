// How many tokens, recurrent states and requests fit into the memory left after loading (facts:
// SGLang 1 and 3; kv_cache_configurator.py, pool_configurator.py). Pure arithmetic, in SGLang's own
// doubles: a different rounding would be another number of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "sim/core/units.hpp"
#include "sim/engines/outcome.hpp"
#include "sim/engines/sglang/deployment.hpp"

namespace oomcast::sglang {

// Bytes on one rank.
struct CacheSizes {
  double full_token = 0;    // a token in all layers with full attention
  double window_token = 0;  // ... in the layers of the window pool
  Bytes state;              // one slot of recurrent state, all layers
  // Releases that split by layers: a token in all layers, shaped like full ones.
  double any_token = 0;
  std::int64_t full_layers = 0;
  std::int64_t window_layers = 0;
  Tokens window;  // as the pools keep it
  // DeepSeek V4: states of requests, whatever the tokens; slots of the window pool where requests
  // bound it.
  Bytes fixed;
  std::optional<Tokens> window_cap;
};
CacheSizes cache_sizes(const Deployment& deployment, int stage);

// Slots of the window pool that the deployment's most running requests hold at once.
Tokens window_request_cap(const Deployment& deployment, Tokens window);

// Whether a layer's tokens lie in the window pool.
bool in_window_pool(const Deployment& deployment, const models::KvLayerSpec& layer);

// Bytes of K and V, or of the latent, of one token in one layer.
double token_bytes(const Deployment& deployment, const models::KvLayerSpec& layer);

// Free memory as SGLang reads it, the lowest of all ranks.
struct FreeMemory {
  Bytes before;  // weights
  Bytes after;
};

struct CachePlan {
  Tokens tokens;         // max_total_num_tokens
  Tokens window_tokens;  // of the window pool; 0: none
  std::int64_t state_slots = 0;
  std::int64_t max_running = 0;
  std::int64_t rows = 0;  // of the request table
};

// Rows of the request table that a decode server has beyond its running requests, for those whose
// KV is on its way (facts: SGLang 4).
std::int64_t preallocation_rows(const Deployment& deployment, std::int64_t max_running);

// SGLang's own refusal.
struct CacheRefusal {
  OutcomeKind kind = OutcomeKind::kKvTooSmall;
  Bytes short_by;
  std::string message;
};

// The tokens alone, for pipelines: the stage with the fewest decides.
struct CacheBudget {
  Bytes kv;  // for K and V
  std::int64_t state_slots = 0;
};
std::variant<CacheBudget, CacheRefusal> cache_budget(const Deployment& deployment,
                                                     const CacheSizes& sizes,
                                                     const FreeMemory& free);
std::variant<CachePlan, CacheRefusal> cache_plan(const Deployment& deployment,
                                                 const CacheSizes& sizes,
                                                 const CacheBudget& budget);

}  // namespace oomcast::sglang
