// The vision encoder's pass of the profile run, on paper.
#include "sim/engines/vllm/encoder_profile.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/run/plan.hpp"

namespace oomcast::vllm {
namespace {

Deployment resolved(const std::string& line, const std::string& version = "0.19.0",
                    const std::string& config = "") {
  DeploymentInput input;
  input.launch_line = "vllm serve " + line;
  if (!config.empty()) {
    input.model_config = std::string(OOMCAST_TEST_DATA) + "/models/configs/" + config;
  }
  input.gpu = "H100-80GB";
  input.engine_version = version;
  return std::move(*resolve_input(input).as<vllm::Deployment>());
}

Bytes highest(const Deployment& deployment) {
  const opgraph::Program program(encoder_graph(deployment));
  const opgraph::StepShape shape{encoder_batch(deployment)->patches, 0, 0};
  Bytes most;
  for (std::uint32_t op = 0; op < program.steps().size(); ++op) {
    most = std::max(most, program.live_set(opgraph::OpId{op}, shape).bytes());
  }
  return most;
}

// One image of 16,384 tokens, 65,536 patches of 1536 values; the encoder is 1024 wide. When
// attention's output is projected: pixels, hidden states, positions, normed, 3 widths of queries,
// keys and values, 2 copied, 2 rotated, context and output.
TEST(EncoderProfile, QwenHoldsElevenWidthsBesidePixelsAndPositions) {
  const Deployment deployment = resolved("Qwen/Qwen3.5-4B");
  const auto batch = encoder_batch(deployment);
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->images, 1);
  EXPECT_EQ(batch->patches, 65'536);
  EXPECT_EQ(batch->embeddings, Bytes{16'384LL * 2560 * 2});
  EXPECT_EQ(highest(deployment), Bytes{65'536LL * (1536 + 12 * 1024) * 2});
}

// As many images of 256 tokens as the batch has room for, 4096 patches each; the feed-forward is
// 4304 wide: pixels, hidden states, normed, inner, activated and output.
TEST(EncoderProfile, GemmaFillsTheBatchWithImages) {
  const Deployment deployment =
      resolved("google/gemma-3-27b-it --max-num-batched-tokens 16384 --max-num-seqs 256");
  const auto batch = encoder_batch(deployment);
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->images, 64);
  EXPECT_EQ(highest(deployment), Bytes{64LL * 4096 * (588 + 3 * 1152 + 2 * 4304) * 2});
}

// Three inner layers of Qwen3-VL's encoder reach the language model, whose width is 2560.
TEST(EncoderProfile, TappedLayersHaveABufferOfABatchEach) {
  const std::string model = "Qwen/Qwen3-VL-4B-Instruct --max-num-batched-tokens 4096 ";
  const std::string config = "Qwen__Qwen3-VL-4B-Instruct.json";
  EXPECT_EQ(tapped_embeddings(resolved(model, "0.19.0", config)), Bytes{3LL * 4096 * 2560 * 2});
  EXPECT_EQ(tapped_embeddings(resolved(model + "--language-model-only", "0.19.0", config)),
            Bytes{});
  EXPECT_EQ(tapped_embeddings(resolved("Qwen/Qwen3.5-4B")), Bytes{});
}

Bytes weights(const Deployment& deployment) {
  return models::weights_on_rank(*deployment.model, deployment.shard(0)).total();
}

// Ranks that share four images take two each, with the whole width; what one rank does not hold of
// a divided encoder is half of its 24 layers and of its four mergers. A layer: (3 + 1) x 1024^2
// and 3 x 1024 biases, 2 x 1024 x 4096 and 4096; a merger: 4096^2 + 4096 + 4096 x 2560.
TEST(EncoderProfile, RanksShareImagesOrTheEncodersWidth) {
  const std::string model = "Qwen/Qwen3-VL-4B-Instruct -tp 2 --max-num-batched-tokens 65536 ";
  const std::string config = "Qwen__Qwen3-VL-4B-Instruct.json";
  const Deployment divided = resolved(model, "0.19.0", config);
  const Deployment shared = resolved(model + "--mm-encoder-tp-mode data", "0.19.0", config);
  EXPECT_EQ(encoder_batch(divided)->patches, 4 * 65'536);
  EXPECT_EQ(encoder_batch(shared)->patches, 2 * 65'536);
  EXPECT_EQ(encoder_batch(shared)->embeddings, encoder_batch(divided)->embeddings);
  constexpr std::int64_t kLayer = 4 * 1024 * 1024 + 3 * 1024 + 2 * 1024 * 4096 + 4096;
  constexpr std::int64_t kMerger = 4096 * 4096 + 4096 + 4096 * 2560;
  EXPECT_EQ(weights(shared) - weights(divided), Bytes{24 * kLayer + 4 * kMerger});
}

// Gemma 4's encoder is the Transformers library's: no rank divides it.
TEST(EncoderProfile, EncodersOfOtherLibrariesAreWhole) {
  const std::string config = "google__gemma-4-E2B-it.json";
  const Deployment one = resolved("google/gemma-4-E2B-it", "0.33.0", config);
  const Deployment two = resolved("google/gemma-4-E2B-it -tp 2", "0.33.0", config);
  const auto encoder = [](const Deployment& deployment) {
    models::ShardPlan without = deployment.shard(0);
    without.towers = false;
    return weights(deployment) - models::weights_on_rank(*deployment.model, without).total();
  };
  EXPECT_GT(encoder(one), 512 * kMiB);
  EXPECT_EQ(encoder(two), encoder(one));
}

TEST(EncoderProfile, NothingIsEncodedWhereImagesAreOff) {
  EXPECT_FALSE(encoder_batch(resolved("Qwen/Qwen3.5-4B --language-model-only")));
  EXPECT_FALSE(encoder_batch(resolved("Qwen/Qwen3.5-4B --skip-mm-profiling")));
  EXPECT_FALSE(encoder_batch(resolved("meta-llama/Llama-3.1-8B-Instruct")));
}

}  // namespace
}  // namespace oomcast::vllm
