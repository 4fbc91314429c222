// What a prefill or decode server keeps for transfers beside its pools, which are registered in
// place (facts: SGLang 8, runtime 9).
#pragma once

#include <vector>

#include "sim/engines/sglang/cache_plan.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/kernels/buffer.hpp"

namespace oomcast::sglang {

// Of one rank, made once the graphs are captured; nothing for a server of both roles.
std::vector<Buffer> transfer_buffers(const Deployment& deployment, const CachePlan& plan,
                                     const CacheSizes& sizes);

}  // namespace oomcast::sglang
