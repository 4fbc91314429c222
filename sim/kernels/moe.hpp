// Workspaces of fused mixtures of experts on one rank: shapes in, named buffers out. Sources: facts
// pages `runtime` section 8 and `vllm` 3.4, and the sources they name.
//
// Symbols: M tokens that reach the rank, k experts a token, n = M x k routed rows, E experts of the
// model, E_l experts of the rank, H hidden size, I an expert's width on the rank, b element bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/gpu.hpp"
#include "sim/core/version.hpp"
#include "sim/kernels/buffer.hpp"

namespace oomcast::kernels {

struct ExpertShape {
  std::int64_t tokens = 1;
  std::int64_t experts_per_token = 1;
  std::int64_t experts = 1;
  std::int64_t local_experts = 1;
  std::int64_t hidden = 1;
  std::int64_t width = 1;
  std::int64_t element_bytes = 2;
  bool gated = true;  // the first product gives gate and up, else up alone
};

enum class ExpertKernel : std::uint8_t {
  kTriton,
  kDeepGemm,
  kMarlin,
  kCutlassFp8,
  kCutlassFp4,
  kFlashInferCutlass,
  kGptOssTriton,
  kTrtllmGen,
};

// vLLM from 0.14: two pieces of one workspace that all layers share, each aligned to 256 B. It
// keeps the largest request and is locked after warm-up. The first holds the output too: max(ws13,
// M x H) x b + ws2 x b.
std::vector<Buffer> vllm_expert_workspace(const ExpertShape& shape, ExpertKernel kernel);
// Batched DeepGEMM: E_l x T x dispatchers rows, whatever was routed.
std::vector<Buffer> vllm_batched_expert_workspace(const ExpertShape& shape,
                                                  std::int64_t tokens_per_dispatcher,
                                                  std::int64_t dispatchers);

// Tokens of one pass of the experts in vLLM; none: all at once (0.18 and newer).
std::optional<std::int64_t> vllm_expert_chunk(const Version& version);

enum class TritonCaches : std::uint8_t {
  kShared,    // outputs of both products in one: n x max(2I, H)
  kSeparate,  // each its own: n x (2I + H), older SGLang
};

// Triton's fused experts outside vLLM's workspace: intermediate caches of at most `chunk` tokens
// and the output of all.
std::vector<Buffer> triton_experts(const ExpertShape& shape, TritonCaches caches,
                                   std::optional<std::int64_t> chunk);
// With block-quantised fp8: the input of each product and its scales, 128 columns each.
std::vector<Buffer> fp8_expert_inputs(const ExpertShape& shape);

// Rows sorted by expert, padded to blocks of `block` rows.
std::vector<Buffer> expert_alignment(const ExpertShape& shape, std::int64_t block);
// Logits, weights and ids of the chosen experts.
std::vector<Buffer> expert_router(const ExpertShape& shape, std::int64_t logit_bytes);

// --- Kernels with buffers of their own

std::vector<Buffer> marlin_experts(const ExpertShape& shape, const models::GpuSpec& gpu);

// Rows of the contiguous layout: up(n + E_l x (align - 1), align).
std::int64_t deep_gemm_rows(const ExpertShape& shape, std::int64_t alignment);
std::vector<Buffer> deep_gemm_contiguous(const ExpertShape& shape, std::int64_t alignment);
// `rows_per_expert` slots for each expert of the rank.
std::vector<Buffer> deep_gemm_masked(const ExpertShape& shape, std::int64_t rows_per_expert);

enum class CutlassType : std::uint8_t { kBf16, kFp8, kFp8Block, kNvfp4 };

// TensorRT-LLM's and FlashInfer's CUTLASS experts (cutlass_fused_moe_kernels.cuh), each buffer
// aligned to 128 B, without the GEMM's own workspace.
std::vector<Buffer> cutlass_experts(const ExpertShape& shape, CutlassType type);

// trtllm-gen (compute capability 10): intermediates of rows padded to tiles, in a workspace of its
// own outside the engine's pool. Its further runtime memory is not documented.
std::vector<Buffer> trtllm_gen_experts(const ExpertShape& shape, std::int64_t tile);

}  // namespace oomcast::kernels
