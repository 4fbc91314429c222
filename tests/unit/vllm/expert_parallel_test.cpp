// Replicas that exchange tokens with experts: what each backend makes, on paper.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/core/error.hpp"
#include "sim/run/plan.hpp"

namespace oomcast::vllm {
namespace {

constexpr const char* kWide = "--data-parallel-size 16 --enable-expert-parallel ";

DeploymentInput input(const std::string& flags, const std::string& routing = "uniform",
                      const std::string& version = "0.19.0") {
  DeploymentInput input;
  input.launch_line =
      "vllm serve deepseek-ai/DeepSeek-V3 --max-model-len 32768 " + std::string(kWide) + flags;
  input.gpu = "H200";
  input.engine_version = version;
  input.assume = {"expert_routing=" + routing};
  return input;
}

ExpertExchange exchange_of(const std::string& flags, const std::string& routing = "uniform",
                           const std::string& version = "0.19.0") {
  return resolve_input(input(flags, routing, version)).as<vllm::Deployment>()->exchange;
}

TEST(VllmExperts, BuffersByBackend) {
  EXPECT_TRUE(exchange_of("").buffers.empty());
  EXPECT_EQ(exchange_of("").kind, Exchange::kAllGather);
  // 1 GiB and its signals, 32 MiB, and 1 GiB and 256 MiB of RDMA in steps of 512 MiB.
  EXPECT_EQ(device_bytes(exchange_of("--all2all-backend deepep_high_throughput").buffers),
            kGiB + 2 * kMiB + 32 * kMiB + 1536 * kMiB);
  // 256 tokens: 3.555 GiB + 256 MiB.
  EXPECT_EQ(device_bytes(exchange_of("--all2all-backend deepep_low_latency").buffers),
            kGiB + 2 * kMiB + 32 * kMiB + 4 * kGiB);
}

TEST(VllmExperts, PplxSendsByTensorGroup) {
  // 16 replicas: (256 + 65,536) x 7,184 (fp8 and scales) and (65,536 + 256 x 256) x 28,672 ...; two
  // replicas of eight ranks send an eighth of the rows.
  const std::string pplx = "--all2all-backend pplx";
  const auto bytes_of = [&](const std::string& line, const std::string& version) {
    DeploymentInput given = input("", "uniform", version);
    given.launch_line = "vllm serve deepseek-ai/DeepSeek-V3 --max-model-len 32768 " + line + pplx;
    return device_bytes(resolve_input(given).as<vllm::Deployment>()->exchange.buffers);
  };
  const Bytes wide = bytes_of(kWide, "0.12.0");
  const Bytes narrow = bytes_of(
      "--data-parallel-size 2 --tensor-parallel-size 8 --enable-expert-parallel ", "0.12.0");
  EXPECT_GT(wide, narrow + kGiB);
  // 65,536 rows and 256 x 256 of results, 28,672 B each: 3.5 GiB, and what is dispatched.
  EXPECT_GT(wide, Bytes{2 * 65'536LL * 28'672});
  EXPECT_LT(narrow, Bytes{2 * 65'536LL * 28'672});
  // Later versions take all-gather for it and say so.
  auto later = resolve_input(input(pplx, "uniform", "0.33.0"));
  EXPECT_EQ(later.as<vllm::Deployment>()->exchange.kind, Exchange::kAllGather);
  const auto& warnings = later.common().warnings;
  EXPECT_TRUE(std::any_of(warnings.begin(), warnings.end(), [](const std::string& warning) {
    return warning.find("pplx") != std::string::npos;
  }));
}

TEST(VllmExperts, RoutingThatChangesNothingIsSaid) {
  const auto said = [](const std::string& line, const std::string& routing) {
    DeploymentInput given;
    given.launch_line = line;
    given.gpu = "H200";
    given.assume = {"expert_routing=" + routing};
    auto deployment = resolve_input(given);
    const auto& warnings = deployment.common().warnings;
    return std::any_of(warnings.begin(), warnings.end(), [](const std::string& warning) {
      return warning.find("expert_routing") != std::string::npos;
    });
  };
  for (const char* line : {"vllm serve Qwen/Qwen3-8B", "vllm serve Qwen/Qwen3-30B-A3B",
                           "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B",
                           "trtllm-serve Qwen/Qwen3-8B"}) {
    EXPECT_TRUE(said(line, "zipf:1")) << line;
    EXPECT_FALSE(said(line, "uniform")) << line;
  }
  EXPECT_FALSE(said("vllm serve Qwen/Qwen3-30B-A3B --data-parallel-size 2 --enable-expert-parallel",
                    "zipf:1"));
}

TEST(VllmExperts, BatchedExpertsBoundAStep) {
  const std::string flags = "--all2all-backend deepep_low_latency";
  EXPECT_EQ(exchange_of(flags, "uniform", "0.19.0").shape.tokens, 256);
  EXPECT_EQ(exchange_of(flags, "uniform", "0.20.0").shape.tokens, 256);
  EXPECT_EQ(
      exchange_of(flags + " --max-num-batched-tokens 512 --max-num-seqs 512", "uniform", "0.20.0")
          .shape.tokens,
      512);
  // 16 local experts x 16 ranks x 256.
  EXPECT_EQ(exchange_of(flags).slots(), 65'536);
}

TEST(VllmExperts, TokensThatArrive) {
  // Every replica's; 16 x (1 - (15/16)^8); 16 / 16 of 8 picks.
  EXPECT_DOUBLE_EQ(exchange_of("").arriving(), 16);
  EXPECT_DOUBLE_EQ(exchange_of("").routed(), 128);
  const ExpertExchange sparse = exchange_of("--all2all-backend deepep_high_throughput");
  EXPECT_NEAR(sparse.arriving(), 6.4525, 1e-4);
  EXPECT_DOUBLE_EQ(sparse.routed(), 8);
}

TEST(VllmExperts, RedundantExpertsWeighOnEveryRank) {
  const auto weights = [](const std::string& flags) {
    auto deployment = resolve_input(input(flags));
    return models::weights_on_rank(*deployment.as<vllm::Deployment>()->model,
                                   deployment.as<vllm::Deployment>()->shard(0))
        .rounded(Bytes{1});
  };
  // 32 copies on 16 ranks are 2 more each: 58 layers x 2 x 3 x 7168 x 2048 of 8 bits, and a scale
  // of 4 B for 128 x 128 of them.
  const std::int64_t values = 58LL * 2 * 3 * 7168 * 2048;
  EXPECT_EQ(weights("--enable-eplb --eplb-config '{\"num_redundant_experts\": 32}'") - weights(""),
            Bytes{values + values / (128 * 128) * 4});
  EXPECT_THROW(exchange_of("--eplb-config '{\"num_redundant_experts\": 32}'"), ConfigError);
  EXPECT_THROW(exchange_of("--enable-eplb --eplb-config '{\"num_redundant_experts\": 8}'"),
               ConfigError);
}

// The worst rank's share grows with the skew, so does the profile's peak, and the KV cache shrinks.
TEST(VllmExperts, SkewTakesKvTokens) {
  std::int64_t before = INT64_MAX;
  for (const char* routing : {"uniform", "zipf:0.4", "zipf:0.8", "zipf:1.2", "zipf:1.6"}) {
    const Plan plan =
        make_plan(resolve_input(input("--all2all-backend deepep_high_throughput", routing)));
    ASSERT_TRUE(plan.report().kv_tokens.has_value()) << routing;
    EXPECT_LT(*plan.report().kv_tokens, before) << routing;
    before = *plan.report().kv_tokens;
  }
  const std::string balanced =
      "--all2all-backend deepep_high_throughput --enable-eplb "
      "--eplb-config '{\"num_redundant_experts\": 32}'";
  EXPECT_LT(exchange_of(balanced, "zipf:1.2").load.imbalance(), 1.1);
}

TEST(VllmExperts, MicroBatchesHaveTheirOwnWorkspacesAndGraphs) {
  const std::string one = "--all2all-backend deepep_low_latency";
  const auto moe = [](const std::string& flags) {
    const Plan plan = make_plan(resolve_input(input(flags)));
    return plan.ranks().front()->memory.ledger().device_by_leaf()[index_of(Leaf::kWorkspaceMoe)];
  };
  // 65,536 slots x (7168 + 2048) x 2 B, once and twice.
  EXPECT_EQ(moe(one), Bytes{65'536LL * 9216 * 2});
  EXPECT_EQ(moe(one + " --enable-dbo"), Bytes{65'536LL * 9216 * 4});
  const auto sizes = [](const std::string& flags) {
    return resolve_input(input(flags)).as<vllm::Deployment>()->full_capture_sizes().size();
  };
  // 1, 2, 4, 8, 16, 24 are too small to split.
  EXPECT_EQ(sizes(one + " --enable-dbo"), 2 * sizes(one) - 6);
  EXPECT_THROW(exchange_of("--enable-dbo"), ConfigError);
}

TEST(VllmExperts, WhatCannotBeIsRefused) {
  EXPECT_THROW(exchange_of("--all2all-backend mori"), ConfigError);
  EXPECT_THROW(exchange_of("--all2all-backend deepep_low_latency", "file:/nowhere.json"),
               ConfigError);
  try {
    DeploymentInput odd = input("");
    odd.launch_line =
        "vllm serve deepseek-ai/DeepSeek-V3 --data-parallel-size 12 "
        "--enable-expert-parallel";
    (void)resolve_input(odd);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("8 redundant"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace oomcast::vllm
