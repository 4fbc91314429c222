// What the engine makes of a launch line, and the startup that follows, on paper.
#include "sim/engines/vllm/deployment.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"
#include "sim/run/plan.hpp"

namespace oomcast::vllm {
namespace {

Deployment deployment(const std::string& line, const std::string& gpu = "H100-80GB",
                      const std::string& version = "0.19.0") {
  DeploymentInput input;
  input.launch_line = "vllm serve " + line;
  input.gpu = gpu;
  input.engine_version = version;
  return std::move(*resolve_input(input).as<vllm::Deployment>());
}

std::string refusal(const std::string& line, const std::string& gpu = "H100-80GB") {
  try {
    deployment(line, gpu);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kLlama = "meta-llama/Llama-3.1-8B-Instruct ";

TEST(Deployment, BatchDefaultsFollowTheCard) {
  EXPECT_EQ(deployment(kLlama).max_num_seqs, 1024);
  EXPECT_EQ(deployment(kLlama).max_num_batched_tokens, Tokens{8192});
  EXPECT_EQ(deployment(kLlama, "A100-80GB").max_num_seqs, 256);
  EXPECT_EQ(deployment(kLlama, "L40S").max_num_batched_tokens, Tokens{2048});
  EXPECT_EQ(deployment(kLlama, "B200", "0.27.0").max_num_batched_tokens, Tokens{8192});
  EXPECT_EQ(deployment(kLlama, "B200", "0.28.0").max_num_batched_tokens, Tokens{16384});
  EXPECT_EQ(deployment(kLlama, "GB10", "0.32.0").max_num_seqs, 1024);
  EXPECT_EQ(deployment(kLlama, "GB10", "0.33.0").max_num_seqs, 256);
}

// Llama 3.1's own factor makes 131,072 of 8,192; 4 x 8,192 with another.
TEST(Deployment, ChangesOfTheConfigDecideTheLongestContext) {
  const std::string scaling =
      R"('{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":8192}')";
  EXPECT_EQ(deployment(kLlama).max_model_len, Tokens{131'072});
  EXPECT_EQ(deployment(std::string(kLlama) + "--rope-scaling " + scaling, "H100-80GB", "0.11.0")
                .max_model_len,
            Tokens{32'768});
  EXPECT_EQ(
      deployment(std::string(kLlama) + "--hf-overrides.num_hidden_layers 4").model->layer_count(),
      4);
  EXPECT_NE(refusal(std::string(kLlama) + "--hf-overrides.vocab_size -1").find("vocab_size"),
            std::string::npos);
}

TEST(Deployment, CaptureSizes) {
  // 1, 2, 4; 8 to 248 by 8 (31 sizes); 256 to 512 by 16 (17 sizes).
  EXPECT_EQ(deployment(kLlama).capture_sizes.size(), 51U);
  // By 8 throughout before 0.12: 3 + 64.
  EXPECT_EQ(deployment(kLlama, "H100-80GB", "0.11.0").capture_sizes.size(), 67U);
  EXPECT_TRUE(deployment(std::string(kLlama) + "--enforce-eager").capture_sizes.empty());
  EXPECT_EQ(deployment(std::string(kLlama) + "--max-num-seqs 4").capture_sizes,
            (std::vector<std::int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(deployment(std::string(kLlama) + "--cudagraph-capture-sizes 8 1").capture_sizes,
            (std::vector<std::int64_t>{1, 8}));
}

TEST(Deployment, BlocksGrowUntilTheyHoldAState) {
  // A gated delta layer keeps 3 x 8192 values of 16 bits and 32 x 128 x 128 of 32: 2,146,304 B. A
  // token of attention takes 4 heads x 512 x 2 B = 4096 B: 524 tokens hold the state, 528 in
  // multiples of 16.
  const std::string line = "Qwen/Qwen3.5-4B --max-model-len 8192 --gdn-prefill-backend triton ";
  const Deployment alone = deployment(line, "H100-80GB", "0.19.0");
  EXPECT_FALSE(alone.prefix_caching);
  EXPECT_EQ(alone.block_size, Tokens{528});
  const KvLayout layout = alone.kv_layout(0);
  ASSERT_EQ(layout.groups.size(), 4U);
  EXPECT_EQ(layout.page, Bytes{528 * 4096});
  EXPECT_EQ(layout.groups.front().group.type, KvGroup::Type::kMamba);
  EXPECT_EQ(layout.groups.front().group.block_size, Tokens{8192});
  // 16 blocks of attention and one state for each of three groups; 8 layers a group.
  EXPECT_EQ(alone.kv_needed(layout, Tokens{8192}), layout.page * (8 * (16 + 3)));
  // With prefix caching, on from 0.26, a second state at the last boundary.
  const Deployment caching = deployment(line, "H100-80GB", "0.26.0");
  EXPECT_TRUE(caching.prefix_caching);
  EXPECT_EQ(caching.kv_needed(caching.kv_layout(0), Tokens{8192}), layout.page * (8 * (16 + 6)));
}

TEST(Deployment, FullGraphsNeedAStateForEverySequence) {
  const std::string line = "Qwen/Qwen3.5-4B --kv-cache-memory-bytes 8G --max-model-len 4096 ";
  const Startup few = simulate_startup(deployment(line + "--max-num-seqs 64", "L40S", "0.28.0"));
  ASSERT_TRUE(few.outcome.fits()) << few.outcome.message;
  const std::int64_t blocks = *few.report.kv_blocks;
  const auto with = [&](std::int64_t seqs) {
    return simulate_startup(
        deployment(line + "--max-num-seqs " + std::to_string(seqs), "L40S", "0.28.0"));
  };
  EXPECT_TRUE(with(blocks).outcome.fits());
  const Startup many = with(blocks + 1);
  EXPECT_EQ(many.outcome.kind, OutcomeKind::kConfigRejected);
  EXPECT_EQ(many.report.state_blocks, blocks);
}

TEST(Deployment, WindowedLayersAreGroupedOverAllStages) {
  // 26 layers, every sixth full: 4 full and 22 windowed; groups of 4: 1 + 6, on any stage.
  for (const int stages : {1, 2, 3}) {
    const Deployment gemma =
        deployment("google/gemma-3-1b-it -pp " + std::to_string(stages), "L40S", "0.33.0");
    std::int64_t layers = 0;
    for (int stage = 0; stage < stages; ++stage) {
      const KvLayout layout = gemma.kv_layout(stage);
      ASSERT_EQ(layout.groups.size(), 7U);
      for (const KvGroupLayout& group : layout.groups) {
        layers += group.layers;
        EXPECT_LE(group.layers, layout.group_size);
      }
    }
    EXPECT_EQ(layers, 26);
  }
}

TEST(Deployment, OneRequestNeedsWhatThePageArithmeticSays) {
  const Deployment llama = deployment(std::string(kLlama) + "--max-model-len 8192");
  const KvLayout layout = llama.kv_layout(0);
  EXPECT_EQ(layout.block_bytes(), kMiB * 2);  // 16 x 131,072 B
  EXPECT_EQ(llama.kv_needed(layout, Tokens{8192}), kGiB);
  EXPECT_EQ(llama.kv_needed(layout, Tokens{8193}), kGiB + kMiB * 2);
}

// A card without bfloat16 runs "auto" with float16, three families with float32; bfloat16 by name
// is refused.
TEST(Deployment, AutoIsWhatTheCardHas) {
  const auto dtype = [](const std::string& line, const std::string& gpu) {
    return deployment(line, gpu).dtype;
  };
  EXPECT_EQ(dtype("Qwen/Qwen3-1.7B", "L4"), models::DType::kBFloat16);
  EXPECT_EQ(dtype("Qwen/Qwen3-1.7B", "T4"), models::DType::kFloat16);
  EXPECT_EQ(dtype("google/gemma-3-1b-it", "T4"), models::DType::kFloat32);
  EXPECT_NE(refusal("Qwen/Qwen3-1.7B --dtype bfloat16", "T4").find("float16"), std::string::npos);
}

TEST(Startup, MaxModelLenFitsAtTheEstimateAndNotBeyond) {
  const std::string line = std::string(kLlama) + "--kv-cache-memory-bytes 1073741824 ";
  // A GiB holds 512 blocks of 16 tokens: 8,192 tokens.
  const auto outcome = [&](int length) {
    return simulate_startup(deployment(line + "--max-model-len " + std::to_string(length))).outcome;
  };
  EXPECT_TRUE(outcome(8192).fits());
  const Outcome beyond = outcome(8193);
  EXPECT_EQ(beyond.kind, OutcomeKind::kKvTooSmall);
  EXPECT_EQ(beyond.short_by, kMiB * 2);
  EXPECT_NE(beyond.message.find("estimated maximum model length is 8192"), std::string::npos);

  const Startup fitted = simulate_startup(deployment(line + "--max-model-len auto"));
  EXPECT_TRUE(fitted.outcome.fits());
  EXPECT_EQ(fitted.max_model_len, Tokens{8192});
  EXPECT_EQ(fitted.report.max_concurrency, 1.0);
  const Startup roomy = simulate_startup(deployment(std::string(kLlama) + "--max-model-len auto"));
  EXPECT_EQ(roomy.max_model_len, Tokens{131'072});
}

// 32 layers of 4096 B a token; each of two stages has 16 of them. 0.14 to 0.16 compared what all
// layers need with one stage's memory.
TEST(Startup, AStageIsAskedForAllLayersInSomeReleases) {
  const auto outcome = [](const std::string& version, std::int64_t length) {
    DeploymentInput input;
    input.launch_line =
        std::string("vllm serve ") + kLlama + "-pp 2 --max-model-len " + std::to_string(length);
    input.gpu = "H100-80GB";
    input.engine_version = version;
    input.assume = {"available_kv_gib=1"};
    return simulate_startup(*resolve_input(input).as<vllm::Deployment>()).outcome;
  };
  constexpr std::int64_t kAlone = 16384;  // 1 GiB / (16 x 4096 B)
  for (const char* version : {"0.12.0", "0.17.0"}) {
    EXPECT_TRUE(outcome(version, kAlone).fits()) << version;
    EXPECT_FALSE(outcome(version, kAlone + 16).fits()) << version;
  }
  for (const char* version : {"0.14.0", "0.16.0"}) {
    EXPECT_TRUE(outcome(version, kAlone / 2).fits()) << version;
    const Outcome beyond = outcome(version, kAlone);
    EXPECT_EQ(beyond.short_by, kGiB) << version;
    EXPECT_NE(beyond.message.find("estimated maximum model length is 8192"), std::string::npos);
  }
}

TEST(Startup, OtherMemoryOnTheCardIsFoundAtTheFirstCheck) {
  DeploymentInput input;
  input.launch_line = std::string("vllm serve ") + kLlama;
  input.gpu = "H100-80GB";
  input.engine_version = "0.19.0";
  input.card.other_use = kGiB * 9;
  const Outcome outcome = simulate_startup(*resolve_input(input).as<vllm::Deployment>()).outcome;
  EXPECT_EQ(outcome.kind, OutcomeKind::kStartupOom);
  EXPECT_EQ(outcome.phase, "context");
  EXPECT_NE(outcome.message.find("less than desired GPU memory utilization"), std::string::npos);
}

TEST(Refusals, WhatAPlanDoesNotKnowIsRefusedOrWarnedOf) {
  EXPECT_NE(refusal(std::string(kLlama) + "--prefill-context-parallel-size 2")
                .find("prefill context parallelism is not modelled yet"),
            std::string::npos);
  EXPECT_NE(refusal("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=many vllm serve " + std::string(kLlama)),
            "");
  const Deployment sleeps = deployment(std::string(kLlama) + "--enable-sleep-mode --nnodes 1");
  ASSERT_EQ(sleeps.warnings.size(), 1U);
  EXPECT_EQ(sleeps.warnings.front(),
            "--enable-sleep-mode is not modelled: the plan is that of a launch without it");
}

Plan plan_of(const std::string& line, Bytes total, const std::vector<std::string>& assume = {}) {
  DeploymentInput input;
  input.launch_line = "vllm serve " + line;
  input.gpu = "H100-80GB";
  input.engine_version = "0.19.0";
  input.card.total = total;
  input.assume = assume;
  return make_plan(resolve_input(input));
}

// 1 GiB of blocks of 16 x 128 KiB, whether the weights fit or not.
TEST(Report, GivenMemoryHoldsItsTokens) {
  const Plan failed = plan_of(kLlama, 10 * kGiB, {"available_kv_gib=1"});
  EXPECT_EQ(failed.outcome().kind, OutcomeKind::kStartupOom);
  EXPECT_EQ(failed.report().kv_blocks, 512);
  EXPECT_EQ(failed.report().kv_tokens, 8192);
  EXPECT_FALSE(plan_of(kLlama, 10 * kGiB).report().kv_tokens);
}

// The line of the graphs comes before the sampler's last run.
TEST(Report, GraphsAreToldOfWhereTheWarmUpFails) {
  const Plan failed = plan_of(std::string(kLlama) + "--gpu-memory-utilization 0.98", 79 * kGiB);
  EXPECT_EQ(failed.outcome().phase, "warmup");
  EXPECT_TRUE(failed.report().cudagraph);
  const Plan eager = plan_of(std::string(kLlama) + "--enforce-eager", 79 * kGiB);
  EXPECT_FALSE(eager.report().cudagraph);
}

TEST(Refusals, NameTheFlag) {
  const std::string line = kLlama;
  for (const auto& [flags, mentioned] : std::vector<std::pair<std::string, std::string>>{
           {"-tp 3", "tensor"},
           {"--max-model-len 9223372036854775807", "max-model-len"},
           {"--max-num-seqs 9223372036854775807", "max-num-seqs"},
           {"--num-gpu-blocks-override 9223372036854775807", "num-gpu-blocks-override"},
           {"--block-size 7", "block-size"},
           {"--offload-group-size 2", "offload-group-size"},
           {"-cc '{\"cudagraph_capture_sizes\": 5}'", "cudagraph_capture_sizes"},
           {"-cc '{\"max_cudagraph_capture_size\": \"x\"}'", "max_cudagraph_capture_size"},
           {"--no-enable-chunked-prefill --max-num-batched-tokens 64", "max-num-batched-tokens"}}) {
    EXPECT_NE(refusal(line + flags).find(mentioned), std::string::npos)
        << flags << ": " << refusal(line + flags);
  }
}

}  // namespace
}  // namespace oomcast::vllm
