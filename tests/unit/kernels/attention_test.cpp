#include "sim/kernels/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/core/error.hpp"

namespace oomcast::kernels {
namespace {

const models::GpuSpec& h100() {
  static const models::GpuSpec gpu = models::find_gpu("H100");
  return gpu;
}

Bytes bytes_of(const std::vector<Buffer>& buffers, std::string_view name) {
  const auto found = std::find_if(buffers.begin(), buffers.end(),
                                  [&](const Buffer& buffer) { return buffer.name == name; });
  return found == buffers.end() ? Bytes{-1} : found->bytes;
}

// A decode step of Llama-3.1-8B: 32 query heads over 8 KV heads.
AttentionBatch decode(std::int64_t sequences, std::int64_t context) {
  return {sequences, sequences, 1, context, 32, 8, 128, 128};
}

TEST(FlashAttention2, SplitsOnPaper) {
  // 1 x 8 groups = 8 blocks on 264 slots, 64 KV blocks. 29..31 splits leave 3 blocks a split like
  // 22; 32 leave 2 and use 256 / 264 = 97 % of the wave.
  EXPECT_EQ(flash_attention_2_splits(decode(1, 8192), h100()), 32);
  const auto buffers = flash_attention_2(decode(1, 8192), h100());
  EXPECT_EQ(bytes_of(buffers, "split outputs"), Bytes{32 * 32 * 128 * 4});
  EXPECT_EQ(bytes_of(buffers, "split log-sum-exp"), Bytes{32 * 32 * 4});
  EXPECT_EQ(bytes_of(buffers, "log-sum-exp"), Bytes{32 * 4});
  // 27 x 8 = 216 blocks fill 80 % of 264 (211.2); 26 x 8 = 208 do not, but no split is better.
  EXPECT_EQ(flash_attention_2_splits(decode(27, 8192), h100()), 1);
  EXPECT_GT(flash_attention_2_splits(decode(13, 8192), h100()), 1);
  EXPECT_EQ(flash_attention_2(decode(27, 8192), h100()).size(), 1U);
  // Never more splits than KV blocks.
  EXPECT_EQ(flash_attention_2_splits(decode(1, 128), h100()), 1);
}

TEST(FlashAttention3, SplitsOnPaper) {
  const FlashAttention3Options varlen;
  // Counted as one sequence: 8 blocks on 132 SMs. 33 splits are two full waves; 15 are the first
  // within 85 % of that (120 / 132).
  EXPECT_EQ(flash_attention_3_splits(decode(64, 131'072), h100(), varlen), 15);
  EXPECT_EQ(flash_attention_3_splits(decode(64, 512), h100(), varlen), 1);  // 4 KV blocks
  EXPECT_GT(flash_attention_3_splits(decode(64, 513), h100(), varlen), 1);  // 5
  FlashAttention3Options fixed_length;
  fixed_length.varlen = false;
  EXPECT_EQ(flash_attention_3_splits(decode(14, 131'072), h100(), fixed_length), 1);  // 112 blocks
  // Long keys without a mask are split so that a head's part stays in L2: 1 M tokens x 512 B.
  AttentionBatch encoder{1, 1'048'576, 1'048'576, 1'048'576, 1, 1, 128, 128};
  FlashAttention3Options full;
  full.causal = false;
  EXPECT_EQ(flash_attention_3_splits(encoder, h100(), full), 11);  // 512 MiB / 50 MiB
  EXPECT_EQ(flash_attention_3_splits(encoder, h100(), varlen), 1);
}

TEST(FlashAttention3, WindowsLoadFewBlocks) {
  FlashAttention3Options options;
  options.window = 128;  // 128 + 1 + a tile of 128 queries: 3 blocks
  EXPECT_EQ(flash_attention_3_splits(decode(64, 131'072), h100(), options), 1);
  options.window = 1024;  // 10 blocks, so 10 splits at most; 9 come within 85 %
  EXPECT_EQ(flash_attention_3_splits(decode(64, 131'072), h100(), options), 9);
}

TEST(FlashAttention3, FullGraphsTakeTheEnginesSplits) {
  // Recorded growth of vLLM's graph pool at 512 tokens: Llama-8B 256 MiB, Qwen3-14B 320 (40 heads),
  // DeepSeek-V2-Lite 512 (16 heads of 512).
  const auto split_outputs = [](std::int64_t heads, std::int64_t kv_heads, std::int64_t dim) {
    AttentionBatch batch{512, 512, 1, 8192, heads, kv_heads, 128, dim};
    FlashAttention3Options options;
    options.fixed_splits = vllm_graph_splits({{0, 19, 0}});
    return bytes_of(flash_attention_3(batch, h100(), options), "split outputs");
  };
  EXPECT_EQ(split_outputs(32, 8, 128), 256 * kMiB);
  EXPECT_EQ(split_outputs(40, 8, 128), 320 * kMiB);
  EXPECT_EQ(split_outputs(16, 1, 512), 512 * kMiB);
  EXPECT_EQ(vllm_graph_splits({{0, 9, 0}}), 16);
}

TEST(FlashInfer, WorkspacesByEngineAndVersion) {
  FlashInferEngine engine;
  engine.version = {{0, 19, 0}};
  EXPECT_EQ(bytes_of(flashinfer(engine), "float workspace"), Bytes{413'138'944});
  engine.version = {{0, 10, 0}};
  EXPECT_EQ(bytes_of(flashinfer(engine), "float workspace"), 256 * kMiB);
  engine.sglang = true;
  engine.version = {{0, 5, 8}};
  EXPECT_EQ(bytes_of(flashinfer(engine), "float workspace"), 384 * kMiB);
  engine.deterministic = true;
  EXPECT_EQ(bytes_of(flashinfer(engine), "float workspace"), 2 * kGiB);
  engine.deterministic = false;
  engine.use = FlashInferUse::kTrtllmMla;
  EXPECT_EQ(device_bytes(flashinfer(engine)), 150 * kMiB + Bytes{32'768 * 4});
  // 36 captured sizes keep a wrapper each: 288 MiB in the GPU, as much pinned.
  engine.use = FlashInferUse::kPaged;
  engine.wrappers = 0;
  engine.graph_wrappers = 36;
  EXPECT_EQ(bytes_of(flashinfer(engine), "planner buffers"), 288 * kMiB);
  EXPECT_EQ(host_bytes(flashinfer(engine)), 288 * kMiB);
  EXPECT_EQ(device_bytes(flashinfer(engine)), (384 + 288) * kMiB);
}

TEST(FlashInfer, UseOfTheFloatWorkspace) {
  // Two overflows people reported: 283,115,520 B for 96 heads, and 536,346,624 B for 32 heads of
  // 256.
  EXPECT_EQ(flashinfer_prefill_use(96, 360, 16, 128), Bytes{283'115'520 + 96 * 360 * 16 * 4});
  EXPECT_EQ(flashinfer_prefill_use(32, 1023, 16, 256), Bytes{536'346'624 + 32 * 1023 * 16 * 4});
  EXPECT_EQ(flashinfer_decode_use(32, 100, 128), Bytes{32 * 100 * 129 * 4});
  EXPECT_EQ(flashinfer_mla_use(h100()), Bytes{17'369'088});  // 17.4 MB
  EXPECT_EQ(flashinfer_persistent_use(8, 3, 128, h100()), Bytes{4 * 132 * 3 * 8 * (256 + 4)});
}

TEST(Mla, FlashMlaOnPaper) {
  const MlaBatch batch{128, 1, 128, 1, 512, 4096};
  const auto dense = flashmla_dense(batch, h100());
  // 132 / ceil(128 / 64) = 66 parts, 194 splits: 48.5 MiB.
  EXPECT_EQ(bytes_of(dense, "split outputs"), Bytes{194LL * 128 * 512 * 4});
  EXPECT_EQ(bytes_of(dense, "split outputs").count() * 2, (97 * kMiB).count());
  EXPECT_EQ(bytes_of(dense, "scheduler metadata"), Bytes{66 * 32 + 129 * 4});
  // sm90: 132 / 1 / 2 = 66 parts; sm100 with its 128-head kernel 148 / 2 = 74.
  EXPECT_EQ(bytes_of(flashmla_sparse(batch, h100(), false), "split outputs"),
            Bytes{194LL * 128 * 512 * 4});
  EXPECT_EQ(bytes_of(flashmla_sparse(batch, models::find_gpu("B200"), true), "split outputs"),
            Bytes{(128LL + 74) * 128 * 512 * 4});
}

TEST(Mla, TritonAndCutlass) {
  const MlaBatch batch{8, 1, 16, 1, 512, 131'072};
  EXPECT_EQ(device_bytes(triton_mla(batch, h100(), false)), Bytes{8 * 16 * 4 * 513 * 4});
  // 131,072 / 512 = 256 splits, at most 2 x 132.
  EXPECT_EQ(device_bytes(triton_mla(batch, h100(), true)), Bytes{8 * 16 * 256LL * 513 * 4});
  EXPECT_EQ(device_bytes(cutlass_mla(batch, 16)), 128 * kMiB);
  EXPECT_EQ(device_bytes(cutlass_mla({256, 1, 128, 1, 512, 4096}, 16)),
            Bytes{2052LL * 128 * 16 * 256});
}

TEST(Mla, ChunkedPrefill) {
  MlaPrefill prefill;
  prefill.max_model_len = 163'840;
  prefill.max_sequences = 256;
  EXPECT_EQ(mla_prefill_tokens(prefill), 65'536);
  auto buffers = mla_prefill(prefill);
  EXPECT_EQ(bytes_of(buffers, "gathered latents"), Bytes{75'497'472});  // 72 MiB
  EXPECT_EQ(bytes_of(buffers, "up-projected keys and values"), 4 * kGiB);
  EXPECT_EQ(bytes_of(buffers, "concatenated keys"), 3 * kGiB);
  prefill.tensor_ranks = 8;
  EXPECT_EQ(bytes_of(mla_prefill(prefill), "up-projected keys and values"), 512 * kMiB);
  // Short models need less; many sequences need a block each.
  prefill.max_model_len = 1024;
  prefill.max_sequences = 16;
  EXPECT_EQ(mla_prefill_tokens(prefill), 8192);
  prefill.max_sequences = 2048;
  EXPECT_EQ(mla_prefill_tokens(prefill), 131'072);
}

TEST(Mla, IndexerLogitsAreCutToTheLimit) {
  EXPECT_EQ(device_bytes(indexer_logits(8192, 131'072, Bytes{0})), 4 * kGiB);
  EXPECT_EQ(device_bytes(indexer_logits(8192, 131'072, 512 * kMiB)), 512 * kMiB);
  EXPECT_EQ(device_bytes(indexer_logits(8, 131'072, 512 * kMiB)), Bytes{8 * 131'072 * 4});
  EXPECT_EQ(device_bytes(indexer_logits(8, 131'072, Bytes{4})), Bytes{131'072 * 4});
}

TEST(EngineAttention, SglangAndTrtllm) {
  // Llama-8B at 256 sequences and 131,072 tokens, page 1: 128 MiB (recorded).
  EXPECT_EQ(bytes_of(sglang_fa3_metadata(256, 131'072, 1), "page table"), 128 * kMiB);
  EXPECT_EQ(bytes_of(sglang_fa3_metadata(256, 131'073, 64), "page table"), Bytes{256 * 2049 * 4});
  EXPECT_EQ(bytes_of(sglang_triton_decode(decode(160, 1), 8), "split outputs"),
            Bytes{160 * 32 * 8 * 128 * 4});
  TrtllmAttention attention;
  attention.batch = decode(1, 4096);
  // ceil(132 / 32) = 5 tiles.
  const auto generation = trtllm_attention(attention, h100());
  EXPECT_EQ(bytes_of(generation, "partial outputs"), Bytes{2 * 32 * 128 * 5});
  EXPECT_EQ(bytes_of(generation, "partial sums"), Bytes{640});
  attention.batch.query_tokens = attention.batch.max_query_tokens = 8192;
  attention.fp8_context = true;
  EXPECT_EQ(device_bytes(trtllm_attention(attention, h100())),
            Bytes{8192 * (32 + 16) * 128 + 4 * 128});
}

TEST(Attention, GrowsWithTheBatch) {
  Bytes before;
  for (std::int64_t sequences = 1; sequences <= 512; sequences *= 2) {
    FlashAttention3Options options;
    options.fixed_splits = 32;
    const MlaBatch mla{sequences, 1, 128, 1, 512, 8192};
    const Bytes now = device_bytes(flash_attention_3(decode(sequences, 8192), h100(), options)) +
                      device_bytes(flashmla_dense(mla, h100())) +
                      device_bytes(triton_mla(mla, h100(), true)) +
                      device_bytes(cutlass_mla(mla, 8));
    EXPECT_GT(now, before);
    before = now;
  }
}

TEST(Attention, NonsenseIsRefused) {
  AttentionBatch bad = decode(0, 8192);
  bad.query_heads = -1;
  try {
    flash_attention_2(bad, h100());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_GE(error.problems().size(), 3U);  // sequences, query tokens, heads: all at once
  }
  EXPECT_THROW(flash_attention_3(decode(1, INT64_MAX), h100(), {}), ConfigError);
  FlashAttention3Options options;
  options.fixed_splits = 257;
  EXPECT_THROW(flash_attention_3(decode(1, 1), h100(), options), ConfigError);
  EXPECT_THROW(flashmla_dense({1, 1, 1, 2, 512, 1}, h100()), ConfigError);
  const std::int64_t most = ShapeCheck::kMost;
  EXPECT_THROW(triton_mla({most, most, 1, 1, 512, 1}, h100(), false), ArithmeticOverflow);
  EXPECT_THROW(mla_prefill_tokens({most, most, most}), ArithmeticOverflow);
  EXPECT_THROW(indexer_logits(most, most, Bytes{0}), ArithmeticOverflow);
}

}  // namespace
}  // namespace oomcast::kernels
