// Tensors that a vLLM worker keeps from some phase of its startup on, and the sizes of workspaces
// that steps ask for.
//
// T max_num_batched_tokens, N max_num_seqs, R rows with logits, H hidden size, I MLP width, V
// vocabulary (un-padded), L max_model_len, b bytes of an element, u = R x V x 4 B. Formulas: facts
// pages vLLM 3.2-3.5, 3.10 and vLLM startup.
#pragma once

#include <vector>

#include "sim/core/units.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/step_program.hpp"
#include "sim/kernels/moe.hpp"
#include "sim/opgraph/graph.hpp"
#include "sim/opgraph/program.hpp"

namespace oomcast::vllm {

// Sampler peak in u of the profile run, for this version, runner and dtype.
double profile_sampler_units(const Deployment& deployment);

// The Triton top-k/top-p sampler's buffer, kept once made: min(pow2ceil(min(SM, R)), SM) x V x 4 B.
Bytes sampler_buffer(const Deployment& deployment, std::int64_t rows);

// How the kernel of gpt-oss' MXFP4 experts stores them: Triton's where the release brings it for
// the card, TensorRT-LLM's on Blackwell, else Marlin (fused_moe/oracle/mxfp4.py,
// quantization/mxfp4.py; layouts: third_party/triton_kernels, tensor_details/layout_details).
models::Fp4Experts fp4_experts(const Deployment& deployment);

// Whether NVFP4 weights are laid out for Marlin: where the card has no such products itself.
bool repacks_fp4(const Deployment& deployment);

// The kernel that runs the experts of this model on this card.
kernels::ExpertKernel expert_kernel(const Deployment& deployment);
// Whether one call of trtllm-gen routes, multiplies and sums, with tensors of its own.
bool runs_trtllm_experts(const Deployment& deployment);
// Its workspace for `tokens` tokens, shared by all layers and kept.
Bytes expert_workspace(const Deployment& deployment, const models::FfnSpec& ffn, Tokens tokens);

// What sparse attention takes of the workspace that all layers share, once kept: DeepSeek V4's
// latents of four prompts, gathered in 16 bits (nvidia/flashmla.py), and the keys that the indexer
// gathers of 40 x max_model_len tokens (mla/indexer.py get_max_prefill_buffer_size).
Bytes sparse_workspace(const Deployment& deployment);
// Whether the experts' workspace outlives their call.
bool keeps_expert_workspace(const Deployment& deployment);
// One buffer serves attention and experts, as large as the largest asks (v1/worker/workspace.py).
Bytes shared_workspace(const Deployment& deployment);
// What FlashInfer's gated delta kernels and vLLM for them keep from their first run on: states at
// the checkpoints of a prefill (mamba/gdn/qwen_gdn_linear_attn.py) and the kernels' workspaces.
std::vector<opgraph::TensorInfo> delta_net_buffers(const Deployment& deployment,
                                                   const models::StateSpec& state);

// Of one expert on a rank: whole where experts are spread over ranks.
std::int64_t local_expert_width(const Deployment& deployment, const models::FfnSpec& ffn);

// Whether the layers' matrix products go through cuBLAS; packed integer weights have own kernels.
bool uses_cublas(const Deployment& deployment);

// Whether linear layers turn their inputs into 8 bits before the product.
bool quantises_activations(const Deployment& deployment);

// FlashAttention 3 with full graphs: keys are split over this many blocks, whatever the batch.
inline constexpr std::int64_t kAttentionSplits = 32;
bool splits_keys(const Deployment& deployment);

// Tokens of cached context that MLA's chunked prefill projects up at a time:
// min(max(8 L, 4 N block), 65536), at least N block.
std::int64_t mla_workspace_tokens(const Deployment& deployment);

// Buffers the model runner keeps from its construction on.
std::vector<opgraph::LiveTensor> runner_buffers(const Deployment& deployment, StageRole role);

// What the second runner keeps for each request's sampling parameters, made once the model is
// loaded (v1/worker/gpu/sample/*, structured_outputs.py).
std::vector<opgraph::LiveTensor> sampling_states(const Deployment& deployment, StageRole role);

// Block tables and slot mappings of all KV groups, made with the KV cache after the budget is
// fixed. The first runner has some from its construction on, for a layout it does not know yet.
std::vector<opgraph::LiveTensor> block_tables(const Deployment& deployment, const KvLayout& layout);

}  // namespace oomcast::vllm
