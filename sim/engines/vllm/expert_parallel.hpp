// How vLLM's replicas exchange tokens with experts (--all2all-backend). Rules: facts pages vLLM 1.1
// and 3.4, runtime 6, and vllm/distributed/device_communicators/all2all.py.
#pragma once

#include "sim/core/error.hpp"
#include "sim/engines/vllm/deployment.hpp"

namespace oomcast::vllm {

// Experts are batched: a fixed number of slots a sender, which bounds a step's tokens.
bool has_batched_experts(const Deployment& deployment);

// Of a deployment whose parallelism and limits on a batch are settled. What cannot be is added to
// `problems`.
ExpertExchange expert_exchange(const Deployment& deployment, Problems& problems);

}  // namespace oomcast::vllm
