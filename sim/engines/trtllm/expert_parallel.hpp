// How ranks with attention of their own (--enable_attention_dp) exchange tokens with experts.
// Facts: pages TensorRT-LLM 2 and runtime 6.5.
#pragma once

#include "sim/engines/trtllm/deployment.hpp"

namespace oomcast::trtllm {

// Of a deployment whose parallelism and limits on a step are settled.
ExpertExchange expert_exchange(const Deployment& deployment);

}  // namespace oomcast::trtllm
