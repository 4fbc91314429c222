// Each figure is worked out by hand or published; the formula stands beside it.
#include "sim/comm/expert_dispatch.hpp"

#include <gtest/gtest.h>

#include <string>

#include "sim/core/error.hpp"

namespace oomcast::comm {
namespace {

constexpr std::int64_t kV3Hidden = 7168;

DispatchShape deepseek_v3(std::int64_t ranks, std::int64_t tokens, std::int64_t experts = 256) {
  return {ranks, tokens, kV3Hidden, experts, 8};
}

Bytes largest_nvlink(std::int64_t ranks, std::int64_t hidden) {
  return std::max(
      deep_ep_nvlink_hint(deep_ep_queues(ranks, DeepEpPass::kDispatch), ranks, 2 * hidden, 20),
      deep_ep_nvlink_hint(deep_ep_queues(ranks, DeepEpPass::kCombine), ranks, 2 * hidden, 20));
}
Bytes largest_rdma(std::int64_t ranks, std::int64_t hidden) {
  return std::max(
      deep_ep_rdma_hint(deep_ep_queues(ranks, DeepEpPass::kDispatch), ranks, 2 * hidden, 20),
      deep_ep_rdma_hint(deep_ep_queues(ranks, DeepEpPass::kCombine), ranks, 2 * hidden, 20));
}

struct NormalRow {
  std::int64_t ranks;
  std::int64_t hidden;
  std::int64_t nvlink;
  std::int64_t rdma;
};

// C = 10 channels, P = min(n, 8) peers, R = max(n / 8, 1) nodes; a token is 2H + 8 + 128 x 16.
//   NVLink = up(C P (2R + 3) 4 + C P receive (2H + 2056), 128)
//   RDMA   = up(C R 18 x 2 x 4 + 2 C R up(receive, send) (2H + 2072), 128)
// facts runtime 6.1: 320 MiB; 360 + 88; 360 + 160; 360 + 320; 900 + 744 MiB.
class DeepEpNormal : public testing::TestWithParam<NormalRow> {};

TEST_P(DeepEpNormal, Hints) {
  const NormalRow& row = GetParam();
  EXPECT_EQ(largest_nvlink(row.ranks, row.hidden).count(), row.nvlink);
  EXPECT_EQ(largest_rdma(row.ranks, row.hidden).count(), row.rdma);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, DeepEpNormal,
    testing::Values(
        // 80 x 5 x 4 + 80 x 256 x 16,392 = 335,709,760
        NormalRow{8, 7168, 335'709'824, 0},
        // 40 x 5 x 4 + 40 x 256 x 16,392
        NormalRow{4, 7168, 167'854'976, 0},
        // 80 x 7 x 4 + 80 x 288 x 16,392; 20 x 144 + 40 x 140 x 16,408 (up(128, 20) = 140)
        NormalRow{16, 7168, 377'673'984, 91'887'744},
        // 80 x 11 x 4 + ...; 40 x 144 + 80 x 128 x 16,408
        NormalRow{32, 7168, 377'675'264, 168'023'680},
        NormalRow{64, 7168, 377'677'824, 336'047'360},
        // receive 720: 80 x 39 x 4 + 80 x 720 x 16,392; up(128, 12) = 132
        NormalRow{144, 7168, 944'191'744, 779'734'144},
        // 80 x 5 x 4 + 80 x 256 x (4,096 + 2,056)
        NormalRow{8, 2048, 125'994'624, 0}));

TEST(DeepEp, HasQueuesForCertainGroupsOnly) {
  try {
    (void)deep_ep_queues(12, DeepEpPass::kDispatch);
    FAIL() << "12 ranks were taken";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("12"), std::string::npos) << text;
    EXPECT_NE(text.find("8, 16, 24"), std::string::npos) << text;
  }
  for (const std::int64_t ranks : deep_ep_group_sizes()) {
    EXPECT_GT(deep_ep_queues(ranks, DeepEpPass::kCombine).nvlink_receive, 0) << ranks;
  }
}

struct LowLatencyRow {
  std::int64_t tokens;
  std::int64_t hidden;
  std::int64_t experts;
  std::int64_t bytes;
};

// dispatch 16 + 2H, combine 2H + H/128 x 4; E T slots of the larger on both sides and 4E of
// signals, twice; one line of 128 more. Published in facts runtime 6.2.
class DeepEpLowLatency : public testing::TestWithParam<LowLatencyRow> {};

TEST_P(DeepEpLowLatency, Hint) {
  const LowLatencyRow& row = GetParam();
  for (const std::int64_t ranks : {8, 16, 64}) {
    EXPECT_EQ(deep_ep_low_latency_hint({ranks, row.tokens, row.hidden, row.experts, 8}).count(),
              row.bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeepEpLowLatency,
                         testing::Values(LowLatencyRow{128, 7168, 256, 1'908'410'496},
                                         LowLatencyRow{128, 4096, 128, 545'260'672},
                                         LowLatencyRow{128, 2048, 128, 272'630'912},
                                         // 4 x 288 x 128 x 14,560 + 2 x 1,152 + 128
                                         LowLatencyRow{128, 7168, 288, 2'146'961'792}));

TEST(DeepEp, BufferOnPaper) {
  // vLLM, low latency, DeepSeek-V3, T 256: 1 GiB and its signals, 32 MiB, and 3.555 GiB of RDMA
  // plus 256 MiB of NVSHMEM's own in steps of 512 MiB.
  const auto buffers = deep_ep_buffer(kGiB, deep_ep_low_latency_hint(deepseek_v3(16, 256)));
  ASSERT_EQ(buffers.size(), 3U);
  EXPECT_EQ(buffers[0].bytes, kGiB + 2 * kMiB);
  EXPECT_EQ(buffers[1].bytes, 32 * kMiB);
  EXPECT_EQ(buffers[2].bytes, 4 * kGiB);
  EXPECT_EQ(deep_ep_buffer(kGiB, Bytes{0}).size(), 2U);
}

TEST(DeepEp, LowLatencyTensorsDoNotDependOnRouting) {
  const auto tensors = deep_ep_low_latency_tensors(deepseek_v3(16, 128), Payload::kFp8);
  // 16 local experts x 16 ranks x 128 = 32,768 rows.
  EXPECT_EQ(tensors[0].bytes, Bytes{32'768 * 7168});
  EXPECT_EQ(tensors[1].bytes, Bytes{32'768 * 56 * 4});
  EXPECT_EQ(tensors.back().bytes, Bytes{128 * 7168 * 2});
}

TEST(DeepEp, NormalTensorsFollowWhatArrives) {
  const auto tensors = deep_ep_normal_tensors(deepseek_v3(16, 4096), Payload::kFp8, 10'000);
  EXPECT_EQ(tensors[0].bytes, Bytes{10'000 * 7168});
  EXPECT_EQ(tensors[1].bytes, Bytes{10'000 * 56 * 4});
  EXPECT_EQ(tensors[2].bytes, Bytes{10'000 * 8 * 12});
}

// facts runtime 6.4: 8 x 4096 x 14,464 = 452 MiB; the workspace 14 MiB, its host side 12.8 MB.
TEST(DeepEp, ElasticBuffer) {
  const auto buffers = deep_ep_elastic(deepseek_v3(8, 4096), Payload::kBf16, {});
  EXPECT_EQ(buffers[0].bytes, 452 * kMiB);
  EXPECT_EQ(device_bytes(buffers), 466 * kMiB);
  EXPECT_EQ(host_bytes(buffers), Bytes{12'820'528});
  // Two domains of 8: dispatch 14,464 x (8 x 2 x 4096 + 4096 + 2 x 5376) = 1,162,674,176; combine
  // 14,400 x (8 x 2 x 4096 + 2 x 4096 + 2 x 5376) = 1,216,512,000 -> 1162 MiB.
  const auto hybrid = deep_ep_elastic(deepseek_v3(16, 4096), Payload::kBf16, {2, true, true});
  EXPECT_EQ(hybrid[0].bytes, 1162 * kMiB);
  // Without NVLink in the domain the sender's side is staged too.
  const auto staged = deep_ep_elastic(deepseek_v3(8, 4096), Payload::kBf16, {1, false, true});
  EXPECT_EQ(staged[0].bytes, 904 * kMiB);
}

TEST(Dispatch, Pplx) {
  // Combine out T x E x H x 4 = 939,524,096 (published); E_l x g x T = 16 x 1 x 128 = 2,048 rows x
  // 28,672; dispatch (128 + 2,048) x (14,336 + 16); 8 x (128 + 16 + 16).
  const auto buffers = pplx(deepseek_v3(16, 128), Payload::kBf16, 16);
  const std::int64_t heap = 939'524'096 + 58'720'256 + 2'176 * 14'352 + 1'280;
  EXPECT_EQ(heap, 1'029'475'584);
  EXPECT_EQ(buffers[0].bytes, Bytes{3} * (512 * kMiB.count()));  // + 256 MiB, in steps
  EXPECT_EQ(buffers[1].bytes, 2 * kMiB);                         // 40,960 B
}

TEST(Dispatch, NvlinkTwoSided) {
  // GB200, 152 SMs, 32 ranks: 152 / 2 / (2 x 4) = 9 channels of 2 MiB a rank, and 32 MiB.
  EXPECT_EQ(device_bytes(nvlink_two_sided(deepseek_v3(32, 1), 152)), (2 * 32 * 9 + 32) * kMiB);
}

TEST(Dispatch, NvlinkOneSided) {
  // 8 x 1024 slots: nvfp4 3,584 + 448 + 64 out, 14,336 back.
  const auto buffers = nvlink_one_sided(deepseek_v3(8, 1024), Payload::kNvfp4);
  EXPECT_EQ(buffers[0].bytes, align_up(Bytes{8192 * (4096 + 14'336) + 128}, 2 * kMiB));
}

TEST(Dispatch, MooncakeEp) {
  // 4 x 4 x 256 + 4 x 256 x 128 x 14,368 + 32 MiB = 1.79 GiB.
  const auto buffers = mooncake_ep(deepseek_v3(16, 128));
  EXPECT_EQ(buffers[0].bytes, align_up(Bytes{4'096 + 131'072LL * 14'368 + 33'554'432}, 2 * kMiB));
}

TEST(Dispatch, NixlEpIsMadeForTheMostRanks) {
  // 16 experts a rank on 32 possible ranks: 512 experts.
  const DispatchShape most = deepseek_v3(32, 128, 512);
  EXPECT_EQ(device_bytes(nixl_ep(deepseek_v3(16, 128), 32)),
            align_up(deep_ep_low_latency_hint(most), 2 * kMiB));
  EXPECT_THROW((void)nixl_ep(deepseek_v3(64, 128), 32), ConfigError);
}

TEST(Dispatch, MegaMoeRings) {
  // Prefill (T 6144 and more): rings of 786,432 rows. fp8, I 3072: rows x (7168 + 3072 + 4) = 8.06
  // GB and 16 x rows x 320 B of scales = 4.03 GB (published), then inputs 6144 x 7,488, results 8 x
  // 6144 x 14,336 and counters.
  const DispatchShape shape{8, 6144, kV3Hidden, 256, 8};
  const std::int64_t rings = 786'432LL * (10'244 + 16 * 320);
  EXPECT_NEAR(static_cast<double>(rings), 8.06e9 + 4.03e9, 0.01e9);
  const std::int64_t counters =
      16 * 256 + 8 * 32 + 16 * (786'432 / 8) + 4LL * 32 * 64 * 6144 + 12LL * 786'432;
  const std::int64_t all = rings + 6144LL * 7'488 + 8LL * 6144 * 14'336 + counters;
  // n T = 49,152 rows arrive at most 8 times: 393,216 and padding, less than the limit.
  const std::int64_t pool = align_up(49'152LL * 8 + 32 * 191, 384);
  EXPECT_LT(pool, 786'432);
  const std::int64_t clamped =
      all - (786'432 - pool) * (10'244 + 16 * 320 + 2 + 12);  // 16 / 8 counters and 12 a row
  EXPECT_EQ(mega_moe(shape, Payload::kFp8, 3072)[0].bytes, align_up(Bytes{clamped}, 2 * kMiB));
  const DispatchShape wide{72, 6144, kV3Hidden, 288, 8};
  EXPECT_GT(mega_moe(wide, Payload::kFp8, 3072)[0].bytes.count(), rings);
}

TEST(Dispatch, GatheredTokens) {
  const auto buffers = gathered_tokens(deepseek_v3(8, 8192), 2);
  EXPECT_EQ(buffers[0].bytes, Bytes{65'536LL * 7168 * 2});
  EXPECT_EQ(buffers[1].bytes, Bytes{65'536LL * 256 * 2});
}

TEST(Dispatch, ImpossibleShapesAreNamed) {
  try {
    (void)mooncake_ep({0, -1, 0, 8, 9});
    FAIL();
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    for (const char* name : {"ranks", "tokens", "hidden size", "experts per token"}) {
      EXPECT_NE(text.find(name), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace oomcast::comm
