#include "sim/comm/all_reduce.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"

namespace oomcast::comm {
namespace {

constexpr EngineVersion kVllm{Engine::kVllm, {{0, 19, 0}}};
constexpr EngineVersion kSglang{Engine::kSglang, {{0, 5, 23}}};

class AllReduce : public testing::Test {
 protected:
  RankGroup group(std::int64_t ranks, std::int64_t nodes = 1, Link link = Link::kNvSwitch) const {
    return {ranks, nodes, link, &h100_};
  }
  RankGroup blackwell(std::int64_t ranks) const { return {ranks, 1, Link::kNvSwitch, &b200_}; }

  models::GpuSpec h100_ = models::find_gpu("H100");
  models::GpuSpec b200_ = models::find_gpu("B200");
};

TEST_F(AllReduce, CustomLimitsByGroup) {
  EXPECT_EQ(custom_all_reduce_limit(group(8), kVllm, false), 8 * kMiB);
  EXPECT_EQ(custom_all_reduce_limit(group(4), kVllm, true), 32 * kMiB);
  EXPECT_EQ(custom_all_reduce_limit(group(8), kVllm, true), kKiB * 256);
  EXPECT_EQ(custom_all_reduce_limit(blackwell(6), kVllm, true), kMiB);
  EXPECT_EQ(custom_all_reduce_limit(group(4), {Engine::kVllm, {{0, 10, 0}}}, true), 8 * kMiB);
  EXPECT_EQ(custom_all_reduce_limit(group(3), kVllm, false), std::nullopt);
  EXPECT_EQ(custom_all_reduce_limit(group(1), kVllm, false), std::nullopt);
  EXPECT_EQ(custom_all_reduce_limit(group(8, 2), kVllm, false), std::nullopt);
  EXPECT_EQ(custom_all_reduce_limit(group(2, 1, Link::kPcie), kVllm, false), 8 * kMiB);
  EXPECT_EQ(custom_all_reduce_limit(group(4, 1, Link::kPcie), kVllm, false), std::nullopt);
}

TEST_F(AllReduce, CustomBuffersOnPaper) {
  // Signals and 8 MiB take a granule more than 8 MiB; then 8 MiB and the addresses.
  EXPECT_EQ(device_bytes(custom_all_reduce(group(8), kSglang, false)), (10 + 8 + 8) * kMiB);
  // vLLM TP 4 beside symmetric memory: 2 x 32 + 8, and the signals' granule.
  EXPECT_EQ(device_bytes(custom_all_reduce(group(4), kVllm, true)), (2 * 32 + 8 + 2) * kMiB);
  EXPECT_TRUE(custom_all_reduce(group(3), kVllm, false).empty());
}

TEST_F(AllReduce, SymmetricMemory) {
  EXPECT_EQ(device_bytes(symmetric_all_reduce(group(4), kVllm)), (32 + 2) * kMiB);
  EXPECT_EQ(device_bytes(symmetric_all_reduce(group(8), kSglang)), (128 + 2) * kMiB);
  EXPECT_EQ(device_bytes(symmetric_all_reduce(blackwell(2), kVllm)), (8 + 2) * kMiB);
  const models::GpuSpec a100 = models::find_gpu("A100");
  EXPECT_TRUE(symmetric_all_reduce({4, 1, Link::kNvSwitch, &a100}, kVllm).empty());
  EXPECT_TRUE(symmetric_all_reduce(group(4), {Engine::kVllm, {{0, 10, 0}}}).empty());
  EXPECT_EQ(device_bytes(nccl_symmetric_pool(kSglang)), 4 * kGiB);
  EXPECT_TRUE(nccl_symmetric_pool(kVllm).empty());
}

TEST_F(AllReduce, FlashInferFusedOnPaper) {
  const Bytes flags = 2 * kMiB;  // a granule
  EXPECT_EQ(device_bytes(flashinfer_fused(group(8), {2048, 7168, 2})), 896 * kMiB + flags);
  EXPECT_EQ(device_bytes(flashinfer_fused(group(4), {2048, 8192, 2})), 512 * kMiB + flags);
  // The Lamport buffers stop growing at 2,145,386,496 B each.
  const auto large = flashinfer_fused(group(8), {1 << 20, 8192, 2});
  EXPECT_EQ(large.back().bytes, align_up(Bytes{3 * 2'145'386'496LL}, 2 * kMiB));
  // vLLM's limits: 4 x ranks x limit, to a row of tokens.
  const auto workspace = [&](const RankGroup& of) {
    const auto tokens = vllm_fused_tokens(of, kVllm.version, 8192, 2);
    return device_bytes(flashinfer_fused(of, {tokens.value(), 8192, 2})) - flags;
  };
  EXPECT_EQ(workspace(group(8)), 16 * kMiB);
  EXPECT_EQ(workspace(group(4)), 32 * kMiB);
  EXPECT_EQ(workspace(group(2)), 512 * kMiB);
  EXPECT_EQ(workspace(blackwell(8)), 32 * kMiB);
  EXPECT_EQ(workspace(blackwell(4)), 512 * kMiB);
  EXPECT_EQ(workspace(blackwell(2)), 512 * kMiB);
  EXPECT_EQ(vllm_fused_tokens(group(6), kVllm.version, 8192, 2), std::nullopt);
  EXPECT_EQ(vllm_fused_tokens(group(8), {{0, 9, 0}}, 8192, 2), std::nullopt);
}

TEST_F(AllReduce, OtherFlashInferBackends) {
  // 3 x 2 x 2048 x 7168 x 2 = 168 MiB; one-shot messages of up to 1 MiB stay below.
  EXPECT_EQ(device_bytes(flashinfer_mnnvl(group(8), {2048, 7168, 2}, 9)), 168 * kMiB);
  EXPECT_EQ(device_bytes(flashinfer_mnnvl(group(8), {1, 7168, 2}, 512)), 168 * kMiB);
  // 2 x (8 x 64 x 7168 x 4) = 2 x 14 MiB, 2 flags, 3 x (8 x 16 x 8 x 7168 x 2) = 3 x 14 MiB.
  EXPECT_EQ(device_bytes(flashinfer_legacy(group(8), {64, 7168, 2})), (28 + 4 + 42) * kMiB);
}

TEST_F(AllReduce, TrtllmWorkspaces) {
  const Bytes flags{8 * 1024};
  EXPECT_EQ(device_bytes(trtllm_all_reduce(group(8), {{1, 2, 0}}, false)), 2 * kGiB + flags);
  EXPECT_EQ(device_bytes(trtllm_all_reduce(group(8), {{1, 0, 0}}, false)),
            Bytes{4 * 8'000'000 * 8} + flags);
  EXPECT_EQ(device_bytes(trtllm_all_reduce(group(2), {{1, 0, 0}}, false)),
            Bytes{4 * 16'000'000 * 2 + 2 * 1024});
  EXPECT_EQ(device_bytes(trtllm_all_reduce(group(8), {{1, 2, 0}}, true)),
            Bytes{32'000'000'000} + flags);
  EXPECT_TRUE(trtllm_all_reduce(group(1), {{1, 2, 0}}, false).empty());
}

TEST_F(AllReduce, WorkedBudgets) {
  // vLLM, 70B at TP 4 on H100: custom 2 x 32 + 8, symmetric 32, fused 32; granules on top.
  GroupSetup vllm{kVllm, true, true, false, FusedAllReduce{0, 8192, 2}};
  EXPECT_EQ(device_bytes(tensor_group_buffers(group(4), vllm)),
            (72 + 2) * kMiB + (32 + 2) * kMiB + (32 + 2) * kMiB);
  // SGLang, DeepSeek-V3 at TP 8: custom 2 x 8 + 8, fused 896 at 2048 tokens.
  GroupSetup sglang{kSglang, true, false, false, FusedAllReduce{0, 7168, 2}};
  EXPECT_EQ(device_bytes(tensor_group_buffers(group(8), sglang)),
            (24 + 2) * kMiB + (896 + 2) * kMiB);
  EXPECT_TRUE(tensor_group_buffers(group(1), vllm).empty());
}

TEST_F(AllReduce, GrowsWithTokensAndRanks) {
  Bytes before;
  for (std::int64_t tokens = 1; tokens <= 1 << 20; tokens *= 8) {
    const Bytes now = device_bytes(flashinfer_fused(group(8), {tokens, 7168, 2})) +
                      device_bytes(flashinfer_mnnvl(group(8), {tokens, 7168, 2}, 0)) +
                      device_bytes(flashinfer_legacy(group(8), {tokens, 7168, 2}));
    EXPECT_GT(now, before);
    before = now;
  }
}

TEST_F(AllReduce, NonsenseIsRefused) {
  EXPECT_THROW(flashinfer_fused(group(8), {0, 7168, 2}), ConfigError);
  EXPECT_THROW(flashinfer_fused(group(8), {1, -7168, 2}), ConfigError);
  EXPECT_THROW(flashinfer_fused(group(8), {std::int64_t{1} << 40, std::int64_t{1} << 31, 2}),
               ArithmeticOverflow);
  EXPECT_THROW(flashinfer_mnnvl(group(8), {1, 7168, 2}, -1), ConfigError);
  EXPECT_THROW(custom_all_reduce(group(-8), kVllm, false), ConfigError);
}

}  // namespace
}  // namespace oomcast::comm
