#include "sim/kernels/moe.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/core/error.hpp"

namespace oomcast::kernels {
namespace {

Bytes bytes_of(const std::vector<Buffer>& buffers, std::string_view name) {
  const auto found = std::find_if(buffers.begin(), buffers.end(),
                                  [&](const Buffer& buffer) { return buffer.name == name; });
  return found == buffers.end() ? Bytes{-1} : found->bytes;
}

// DeepSeek-V3 at TP 8 without EP: 8192 tokens, 8 of 256 experts, widths 7168 and 2048 / 8.
constexpr ExpertShape kDeepSeek{8192, 8, 256, 256, 7168, 256, 2};

TEST(Experts, TritonOnPaper) {
  const auto shared = triton_experts(kDeepSeek, TritonCaches::kShared, std::nullopt);
  EXPECT_EQ(bytes_of(shared, "outputs of both products"), 896 * kMiB);
  EXPECT_EQ(bytes_of(shared, "activated"), 32 * kMiB);
  EXPECT_EQ(bytes_of(shared, "output"), 112 * kMiB);
  const auto separate = triton_experts(kDeepSeek, TritonCaches::kSeparate, std::nullopt);
  EXPECT_EQ(device_bytes(separate), (896 + 64 + 32 + 112) * kMiB);
  // Chunks bound the caches, not the output.
  const auto chunked = triton_experts(kDeepSeek, TritonCaches::kShared, 4096);
  EXPECT_EQ(device_bytes(chunked), (448 + 16 + 112) * kMiB);
  EXPECT_EQ(device_bytes(triton_experts(kDeepSeek, TritonCaches::kShared, 16'384)),
            device_bytes(shared));
}

TEST(Experts, VllmWorkspacesByKernel) {
  const auto bytes = [](ExpertKernel kernel) {
    return device_bytes(vllm_expert_workspace(kDeepSeek, kernel));
  };
  const std::int64_t n = 65'536;
  // n x max(I, H) + n x max(2I, H), both 7168 wide here.
  EXPECT_EQ(bytes(ExpertKernel::kTriton), 2 * 896 * kMiB);
  EXPECT_EQ(bytes(ExpertKernel::kMarlin), 2 * 896 * kMiB);
  EXPECT_EQ(bytes(ExpertKernel::kCutlassFp8), 2 * 896 * kMiB);
  EXPECT_EQ(bytes(ExpertKernel::kCutlassFp4), 896 * kMiB + Bytes{n * 512 * 2});
  EXPECT_EQ(bytes(ExpertKernel::kFlashInferCutlass), 112 * kMiB);
  EXPECT_EQ(bytes(ExpertKernel::kTrtllmGen), 112 * kMiB);
  EXPECT_EQ(bytes(ExpertKernel::kGptOssTriton), 112 * kMiB + Bytes{n * 256 * 2});
  // 65,536 + 256 x 127 = 98,048 rows, a multiple of 128; fp8 first, 16 bit second.
  EXPECT_EQ(deep_gemm_rows(kDeepSeek, 128), 98'048);
  EXPECT_EQ(bytes(ExpertKernel::kDeepGemm), Bytes{98'048LL * 7168 * (1 + 2)});
  // Pieces are aligned to 256 B.
  const ExpertShape tiny{1, 1, 2, 2, 9, 5, 2};
  EXPECT_EQ(device_bytes(vllm_expert_workspace(tiny, ExpertKernel::kTriton)), Bytes{512});
}

TEST(Experts, WithoutGateTheFirstProductIsAsWideAsTheExpert) {
  // Nemotron 3 Nano: recorded with vLLM 0.33, one workspace for both pieces.
  ExpertShape nano{8192, 6, 128, 128, 2688, 1856, 2};
  nano.gated = false;
  EXPECT_EQ(device_bytes(vllm_expert_workspace(nano, ExpertKernel::kTriton)), Bytes{528'482'304});
  nano.gated = true;
  EXPECT_EQ(device_bytes(vllm_expert_workspace(nano, ExpertKernel::kTriton)),
            Bytes{8192LL * 6 * (2688 + 3712) * 2});
}

TEST(Experts, ChunksOfVllmByVersion) {
  EXPECT_EQ(vllm_expert_chunk({{0, 11, 0}}), 32'768);
  EXPECT_EQ(vllm_expert_chunk({{0, 17, 0}}), 16'384);
  EXPECT_EQ(vllm_expert_chunk({{0, 18, 0}}), std::nullopt);
}

TEST(Experts, BatchedAndMaskedRowsDoNotDependOnRouting) {
  // EP 8: 32 experts a rank, 128 tokens from each of 8 ranks: 32,768 rows of 7168, 448 MiB.
  ExpertShape shape = kDeepSeek;
  shape.local_experts = 32;
  shape.width = 2048;
  shape.tokens = 128;
  const auto masked = deep_gemm_masked(shape, 128 * 8);
  EXPECT_EQ(bytes_of(masked, "output of the first product"), 448 * kMiB);
  EXPECT_EQ(bytes_of(masked, "output of the second product"), 448 * kMiB);
  EXPECT_EQ(bytes_of(masked, "activated"), 128 * kMiB);
  EXPECT_EQ(device_bytes(vllm_batched_expert_workspace(shape, 128, 8)), (448 + 128) * kMiB);
}

TEST(Experts, SmallTensorsOnPaper) {
  // 8192 x 8 rows and 256 experts in blocks of 64: 65,536 + 256 x 63 = 81,664 rows, 1276 blocks.
  const auto alignment = expert_alignment(kDeepSeek, 64);
  EXPECT_EQ(device_bytes(alignment), Bytes{4 * (81'664 + 1'276 + 1 + 257)});
  // Fewer rows than experts: at most a block each.
  ExpertShape few = kDeepSeek;
  few.tokens = 2;
  EXPECT_EQ(bytes_of(expert_alignment(few, 64), "sorted rows"), Bytes{4 * 16 * 64});
  EXPECT_EQ(device_bytes(expert_router(kDeepSeek, 4)), Bytes{8192 * 256 * 4 + 65'536 * 8});
  EXPECT_EQ(device_bytes(fp8_expert_inputs(kDeepSeek)),
            Bytes{8192 * (7168 + 56 * 4) + 65'536 * (256 + 2 * 4)});
}

TEST(Experts, CutlassAndTrtllmGenOnPaper) {
  const std::int64_t n = 65'536;
  const auto bf16 = cutlass_experts(kDeepSeek, CutlassType::kBf16);
  EXPECT_EQ(bytes_of(bf16, "permuted input"), Bytes{n * 7168 * 2});
  EXPECT_EQ(bytes_of(bf16, "expert offsets"), Bytes{2176});  // 257 x 8 = 2056
  const auto fp4 = cutlass_experts(kDeepSeek, CutlassType::kNvfp4);
  EXPECT_EQ(bytes_of(fp4, "scales of the input"), Bytes{98'048 * 448});
  EXPECT_EQ(bytes_of(fp4, "scales of the activation"), Bytes{98'048 * 16});
  const auto generated = trtllm_gen_experts(kDeepSeek, 128);
  EXPECT_EQ(device_bytes(generated), Bytes{98'048LL * (7168 + 512 + 7168) * 2});
  EXPECT_EQ(generated[0].backing, Backing::kDriver);
  const auto gpu = models::find_gpu("H100");
  EXPECT_EQ(device_bytes(marlin_experts(kDeepSeek, gpu)),
            (896 + 32 + 112) * kMiB + Bytes{132 * 16});
  EXPECT_EQ(bytes_of(deep_gemm_contiguous(kDeepSeek, 128), "permuted fp8 input"),
            Bytes{98'048LL * 7168});
}

TEST(Experts, GrowWithTokensAndWidth) {
  Bytes before;
  for (std::int64_t tokens = 1; tokens <= 65'536; tokens *= 4) {
    ExpertShape shape = kDeepSeek;
    shape.tokens = tokens;
    shape.width = 16 * tokens;
    Bytes now = device_bytes(deep_gemm_contiguous(shape, 128)) +
                device_bytes(cutlass_experts(shape, CutlassType::kFp8Block)) +
                device_bytes(expert_alignment(shape, 64));
    for (const auto kernel : {ExpertKernel::kTriton, ExpertKernel::kDeepGemm,
                              ExpertKernel::kCutlassFp4, ExpertKernel::kGptOssTriton}) {
      now += device_bytes(vllm_expert_workspace(shape, kernel));
    }
    EXPECT_GT(now, before);
    before = now;
  }
}

TEST(Experts, NonsenseIsRefused) {
  ExpertShape shape = kDeepSeek;
  shape.experts_per_token = 257;
  shape.hidden = 0;
  try {
    vllm_expert_workspace(shape, ExpertKernel::kTriton);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 2U);
  }
  shape = kDeepSeek;
  shape.tokens = ShapeCheck::kMost;
  shape.hidden = std::int64_t{1} << 31;
  EXPECT_THROW(triton_experts(shape, TritonCaches::kShared, std::nullopt), ArithmeticOverflow);
  EXPECT_THROW(triton_experts(kDeepSeek, TritonCaches::kShared, 0), ConfigError);
  EXPECT_THROW(expert_alignment(kDeepSeek, 0), ConfigError);
  EXPECT_THROW(deep_gemm_masked(kDeepSeek, -1), ConfigError);
}

}  // namespace
}  // namespace oomcast::kernels
