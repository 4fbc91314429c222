// Tensors that a SGLang rank keeps from some phase of its startup on (facts: SGLang 3, 4 and SGLang
// startup 1-5).
//
// T tokens of the pool, P page, L layers, R rows of the request table, C context length, B largest
// captured batch, S largest captured prefill, H hidden size, V vocabulary, b bytes of an element.
#pragma once

#include <vector>

#include "sim/engines/sglang/cache_plan.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/opgraph/program.hpp"

namespace oomcast::sglang {

using Tensors = std::vector<opgraph::LiveTensor>;

// Request table, recurrent state, K and V of every layer, allocators, in order of creation.
Tensors pools(const Deployment& deployment, const CachePlan& plan, int stage);
// Bytes of K and V, or latents, over all layers, as SGLang prints them (its pages of padding too);
// and of the recurrent state.
Bytes kv_pool_bytes(const Deployment& deployment, const CachePlan& plan, int stage);
Bytes state_pool_bytes(const Deployment& deployment, const CachePlan& plan, int stage);

// The caches of the model's own draft layers.
Tensors draft_pools(const Deployment& deployment, const CachePlan& plan, int stage);

// Attention workspaces and inputs of eager steps, made with the attention backend.
Tensors attention_workspaces(const Deployment& deployment);
Tensors input_registry(const Deployment& deployment, const CachePlan& plan);

// Inputs and outputs of graphs. The logits buffer is shared and made with the first runner.
Tensors logits_buffer(const Deployment& deployment, std::int64_t largest_batch);
Tensors prefill_inputs(const Deployment& deployment, const CachePlan& plan);
Tensors decode_inputs(const Deployment& deployment, std::int64_t largest_batch);
// The same for graphs of the model's own draft layers: every step's that drafts after the first,
// and those that take in what was accepted (eagle_draft_cuda_graph_runner.py,
// eagle_draft_extend_cuda_graph_runner.py).
Tensors draft_inputs(const Deployment& deployment, std::int64_t largest_batch);
Tensors draft_extend_inputs(const Deployment& deployment, std::int64_t largest_batch);
// What a decode backend keeps for one captured batch.
Tensors decode_metadata(const Deployment& deployment, std::int64_t batch);

}  // namespace oomcast::sglang
