// Workspaces of attention kernels: shapes in, named buffers out. Heads, KV heads and dimensions are
// those of one rank. Sources: facts page `runtime` section 7 and the sources it names.
#pragma once

#include <cstdint>
#include <vector>

#include "models/gpu.hpp"
#include "sim/core/version.hpp"
#include "sim/kernels/buffer.hpp"

namespace oomcast::kernels {

// A batch as an attention kernel sees it.
struct AttentionBatch {
  std::int64_t sequences = 1;
  std::int64_t query_tokens = 1;      // of all sequences
  std::int64_t max_query_tokens = 1;  // of the longest piece
  std::int64_t max_context = 1;       // longest KV length
  std::int64_t query_heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 128;
  std::int64_t value_dim = 128;
};

// --- FlashAttention

// FlashAttention 2 (csrc/flash_attn/flash_api.cpp): the smallest number of KV splits within 85 % of
// the best wave efficiency on 2 x SMs, at most 128; 1 where the batch fills 80 % of them.
std::int64_t flash_attention_2_splits(const AttentionBatch& batch, const models::GpuSpec& gpu);
// log-sum-exp and, with several splits, the partial results, fp32.
std::vector<Buffer> flash_attention_2(const AttentionBatch& batch, const models::GpuSpec& gpu);

struct FlashAttention3Options {
  bool varlen = true;  // splits are chosen on the device: the host allocates for one long sequence
  bool causal = true;
  std::int64_t kv_element_bytes = 2;
  std::int64_t fixed_splits = 0;  // set by the engine: full CUDA graphs
  std::int64_t window = 0;        // of a sliding window, tokens; 0: none
};

// FlashAttention 3 (hopper/heuristics.h): as above on SMs, 1 up to 4 KV blocks.
std::int64_t flash_attention_3_splits(const AttentionBatch& batch, const models::GpuSpec& gpu,
                                      const FlashAttention3Options& options);
std::vector<Buffer> flash_attention_3(const AttentionBatch& batch, const models::GpuSpec& gpu,
                                      const FlashAttention3Options& options);
// vLLM's VLLM_FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH: what full graphs are captured with.
std::int64_t vllm_graph_splits(const Version& version);

// --- FlashInfer

enum class FlashInferUse : std::uint8_t { kPaged, kMla, kTrtllmMla, kTrtllmMha };

struct FlashInferEngine {
  bool sglang = false;  // else vLLM
  Version version;
  FlashInferUse use = FlashInferUse::kPaged;
  bool deterministic = false;       // batch-invariant modes take 2 GiB
  bool large_workspace = false;     // SGLang: architectures it lists (some Qwen)
  std::int64_t wrappers = 1;        // the decode and prefill wrappers in use
  std::int64_t graph_wrappers = 0;  // one a captured batch size, for full-graph decode
};

// Float workspace of the process, and the planners' integer buffers in the GPU and pinned host
// memory, 8 MiB each a wrapper (none for the TRT-LLM kernels).
std::vector<Buffer> flashinfer(const FlashInferEngine& engine);

// Parts of the float workspace that a plan takes; FlashInfer fails ("Buffer overflow when
// allocating") where they pass its size. Each is rounded to 16 B.
Bytes flashinfer_decode_use(std::int64_t query_heads, std::int64_t padded_batch,
                            std::int64_t head_dim);
Bytes flashinfer_prefill_use(std::int64_t query_heads, std::int64_t padded_batch,
                             std::int64_t query_tile, std::int64_t value_dim);
Bytes flashinfer_persistent_use(std::int64_t kv_heads, std::int64_t tiles, std::int64_t head_dim,
                                const models::GpuSpec& gpu);
Bytes flashinfer_mla_use(const models::GpuSpec& gpu);

// --- MLA

struct MlaBatch {
  std::int64_t sequences = 1;
  std::int64_t query_tokens = 1;  // a sequence
  std::int64_t query_heads = 128;
  std::int64_t kv_heads = 1;
  std::int64_t latent_dim = 512;
  std::int64_t max_context = 1;
};

std::vector<Buffer> flashmla_dense(const MlaBatch& batch, const models::GpuSpec& gpu);
// query_tokens: of the whole batch. `head_128_kernel`: compute capability 10's for 128 heads.
std::vector<Buffer> flashmla_sparse(const MlaBatch& batch, const models::GpuSpec& gpu,
                                    bool head_128_kernel);
// vLLM's Triton decode; 4 splits before `splits_by_context`.
std::vector<Buffer> triton_mla(const MlaBatch& batch, const models::GpuSpec& gpu,
                               bool splits_by_context);
// vLLM keeps 128 MiB and grows it when a batch needs more.
std::vector<Buffer> cutlass_mla(const MlaBatch& batch, std::int64_t kv_splits);

struct MlaPrefill {
  std::int64_t max_model_len = 1;
  std::int64_t max_sequences = 1;
  std::int64_t block_size = 64;
  std::int64_t heads = 128;       // of all ranks
  std::int64_t tensor_ranks = 1;  // TP
  std::int64_t latent_dim = 512;
  std::int64_t rope_dim = 64;
  std::int64_t nope_dim = 128;
  std::int64_t value_dim = 128;
  std::int64_t element_bytes = 2;
};

// Tokens of context that a chunked prefill gathers at a time.
std::int64_t mla_prefill_tokens(const MlaPrefill& prefill);
// vLLM: the gathered latents (kept), their up-projection and the concatenated keys.
std::vector<Buffer> mla_prefill(const MlaPrefill& prefill);

// fp32 logits of a sparse indexer. vLLM cuts the query so that they stay below `limit`; none:
// whole.
std::vector<Buffer> indexer_logits(std::int64_t query_tokens, std::int64_t context_tokens,
                                   Bytes limit);

// --- SGLang

// Triton decode: partial results and their log-sum-exp, kept at the largest captured batch.
std::vector<Buffer> sglang_triton_decode(const AttentionBatch& batch, std::int64_t max_kv_splits);
// FlashAttention 3 under graphs: page table, sequence lengths and offsets.
std::vector<Buffer> sglang_fa3_metadata(std::int64_t max_batch, std::int64_t context_length,
                                        std::int64_t page_size);

// --- TensorRT-LLM (common/attentionOp.cpp)

struct TrtllmAttention {
  AttentionBatch batch;
  std::int64_t element_bytes = 2;
  std::int64_t least_tiles = 1;  // multi-block mode's minimum
  bool fp8_context = false;      // q, k and v are copied as fp8
};

// One tensor shared by all layers, the larger of the two phases; each part aligned to 128 B.
std::vector<Buffer> trtllm_attention(const TrtllmAttention& attention, const models::GpuSpec& gpu);

}  // namespace oomcast::kernels
