// DeepSeek V4's caches: a window of latents in all layers, one latent for every 4 or 128 tokens
// before it, keys of the indexer beside those of 4, and fp32 states of the latents in the making
// (pool_configurator.py, DSV4PoolConfigurator; mem_cache/deepseek_v4_memory_pool.py).
//
// An entry takes d - r bytes in fp8, r in 16 bits, a scale for each 64 and one byte more (584 for
// 512 with 64 rotated); a page of them is padded to a multiple of 576.
#pragma once

#include "sim/engines/sglang/cache_plan.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/opgraph/program.hpp"

namespace oomcast::sglang {

bool has_compressed(const models::ModelSpec& model);

// As SGLang's release counts them for its budget.
CacheSizes compressed_sizes(const Deployment& deployment, int stage);

// What it then allocates for a plan.
std::vector<opgraph::LiveTensor> compressed_pools(const Deployment& deployment,
                                                  const CachePlan& plan, int stage);

}  // namespace oomcast::sglang
