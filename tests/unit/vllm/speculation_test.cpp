// Speculative decoding and decode context parallelism of a launch line, on paper.
#include "sim/engines/vllm/speculation.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "sim/core/error.hpp"
#include "sim/run/plan.hpp"

namespace oomcast::vllm {
namespace {

Deployment resolved(const std::string& line, const std::string& config = "",
                    const std::string& version = "0.25.0") {
  DeploymentInput input;
  input.launch_line = "vllm serve " + line;
  input.gpu = "H200";
  input.engine_version = version;
  if (!config.empty()) {
    input.model_config = std::string(OOMCAST_TEST_DATA) + "/models/configs/" + config;
  }
  return std::move(*resolve_input(input).as<vllm::Deployment>());
}

std::string refusal(const std::string& line) {
  try {
    resolved(line);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kLlama = "meta-llama/Llama-3.1-8B-Instruct ";

Bytes bytes_of(const Deployment& deployment) {
  const models::RankWeights weights = draft_weights(*deployment.speculation, deployment.shard(0));
  return std::accumulate(
      weights.tensors.begin(), weights.tensors.end(), Bytes{},
      [](Bytes sum, const models::TensorBytes& tensor) { return sum + tensor.bytes; });
}

TEST(Speculation, AnEagle3DraftIsOneLayerWithAHeadOfItsOwn) {
  const Deployment alone = resolved(kLlama);
  const Deployment drafts = resolved(
      std::string(kLlama) +
      R"(--speculative-config '{"method":"eagle3","model":"a/head","num_speculative_tokens":3}')");
  // Hidden size 4096, 32 and 8 heads of 128, width 14336, a head of 32000 tokens; joined: 3 hidden
  // states, and the projection takes two, each with a norm of its own.
  const std::int64_t h = 4096;
  const std::int64_t layer = 2 * h * (4096 + 2 * 1024) + h * h + 3 * h * 14'336 + 3 * h;
  const std::int64_t elements = layer + 3 * h * h + 32'000 * h + h;
  const Bytes table = Bytes{2048 * 128 * 2};
  const Bytes scales{4 * 4};  // of attention: query, key, value, probabilities
  EXPECT_EQ(bytes_of(drafts), Bytes{2 * elements} + table + scales);
  EXPECT_EQ(drafts.kv_layers(0).size(), alone.kv_layers(0).size() + 1);
  EXPECT_TRUE(drafts.kv_layout(0).groups.front().group.eagle);
  EXPECT_FALSE(alone.kv_layout(0).groups.front().group.eagle);
  EXPECT_TRUE(drafts.async_scheduling);
}

TEST(Speculation, TheModelsOwnLayersAreLoadedAndKeepKv) {
  const std::string v4 = "deepseek-ai__DeepSeek-V4-Flash.json";
  const Deployment alone = resolved("deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 8", v4);
  const Deployment drafts = resolved(
      "deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 8 --spec-method mtp --spec-tokens 2",
      v4);
  EXPECT_TRUE(drafts.shard(0).draft);
  EXPECT_GT(models::weights_on_rank(*drafts.model, drafts.shard(0)).total(),
            models::weights_on_rank(*alone.model, alone.shard(0)).total());
  EXPECT_EQ(drafts.kv_layers(0).size(), alone.kv_layers(0).size() + 1);
}

TEST(Speculation, NgramsNeedNoMemoryAndNoStepAhead) {
  const Deployment drafts =
      resolved(std::string(kLlama) +
               R"(--speculative-config '{"method":"ngram","num_speculative_tokens":4}')");
  EXPECT_EQ(drafts.kv_layers(0).size(), 32U);
  EXPECT_EQ(drafts.speculation->draft, nullptr);
  EXPECT_FALSE(drafts.async_scheduling);
}

TEST(Speculation, ADraftModelIsWhole) {
  const Deployment drafts = resolved(
      std::string(kLlama) +
          R"(-sc '{"model":"meta-llama/Llama-3.2-1B-Instruct","num_speculative_tokens":4}')",
      "", "0.26.0");
  EXPECT_EQ(drafts.kv_layers(0).size(), 32U + 16U);
  EXPECT_FALSE(drafts.kv_layout(0).groups.front().group.eagle);
}

TEST(Speculation, AcceptedDraftsFollowTheProbability) {
  Speculation speculation;
  speculation.method = SpecDecode::Method::kEagle;
  speculation.tokens = 3;
  const SpecDecode config = scheduler_speculation(speculation, 0.5);
  ASSERT_EQ(config.accept.size(), 64U);
  // Of 64 points, 32 accept one and more, 16 two and more, 8 three.
  EXPECT_EQ(std::accumulate(config.accept.begin(), config.accept.end(), 0), 32 + 16 + 8);
  for (const std::int32_t accepted : scheduler_speculation(speculation, 1.0).accept) {
    EXPECT_EQ(accepted, 3);
  }
}

TEST(Speculation, WhatIsWrongIsNamed) {
  const auto with = [](const std::string& json) {
    return refusal(std::string(kLlama) + "--speculative-config '" + json + "'");
  };
  EXPECT_NE(with(R"({"method":"mtp"})").find("a model with MTP layers"), std::string::npos);
  EXPECT_NE(with(R"({"method":"medusa","num_speculative_tokens":2})").find("mtp, eagle"),
            std::string::npos);
  EXPECT_NE(with(R"({"method":"ngram","num_speculative_tokens":2,"tokens":3})")
                .find("--speculative-config: found `tokens`, expected a key of vLLM 0.25.0"),
            std::string::npos);
  EXPECT_NE(with(R"({"method":"ngram","num_speculative_tokens":2,"speculative_token_tree":"a"})")
                .find("up to 0."),
            std::string::npos);
  EXPECT_NE(with(R"({"method":"ngram","num_speculative_tokens":0})").find("1 to 64"),
            std::string::npos);
  EXPECT_NE(with(R"({"model":"no/such","num_speculative_tokens":2})").find("config.json"),
            std::string::npos);
  EXPECT_NE(with(R"({"method":3,"num_speculative_tokens":"two"})").find("an integer"),
            std::string::npos);
  EXPECT_NE(with(R"({"method":"eagle3","num_speculative_tokens":2})").find("the draft's name"),
            std::string::npos);
  EXPECT_NE(with(R"({"method":"ngram","num_speculative_tokens":2,"prompt_lookup_min":9,)"
                 R"("prompt_lookup_max":2})")
                .find("at most prompt_lookup_max, 2"),
            std::string::npos);
  EXPECT_NE(with(R"({"method":"eagle","model":"a/head","num_speculative_tokens":2,)"
                 R"("draft_tensor_parallel_size":7})")
                .find("expected 1, the tensor-parallel-size"),
            std::string::npos);
  EXPECT_NE(refusal(std::string(kLlama) + R"(--spec-method ngram --speculative-config )"
                                          R"('{"method":"ngram","num_speculative_tokens":2}')")
                .find("either this flag or the key method"),
            std::string::npos);
}

TEST(ContextParallel, RanksOfALatentShareTheTokens) {
  const std::string line =
      "deepseek-ai/DeepSeek-V2-Lite --tensor-parallel-size 4 --max-model-len 8192 ";
  const Deployment alone = resolved(line, "", "0.19.0");
  const Deployment shared = resolved(line + "--decode-context-parallel-size 4", "", "0.19.0");
  const KvLayout layout = alone.kv_layout(0);
  EXPECT_EQ(shared.kv_layout(0).block_bytes(), layout.block_bytes());
  EXPECT_EQ(alone.kv_needed(layout, Tokens{8192}), shared.kv_needed(layout, Tokens{8192}) * 4);
  EXPECT_EQ(shared.scheduler_config(Blocks{100}).groups.front().block_size,
            alone.scheduler_config(Blocks{100}).groups.front().block_size * 4);
  EXPECT_NE(
      refusal(std::string(kLlama) + "--tensor-parallel-size 4 --decode-context-parallel-size 2")
          .find("hold the same KV heads"),
      std::string::npos);
}

}  // namespace
}  // namespace oomcast::vllm
