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
  EXPECT_EQ(batch->pixels, Bytes{65'536LL * 1536 * 2});
  EXPECT_EQ(highest(deployment), Bytes{65'536LL * (1536 + 12 * 1024) * 2});
}

// As many images of 256 tokens as the batch has room for, 4096 patches each; the feed-forward is
// 4304 wide: pixels, what went in, hidden states, normed, inner and activated.
TEST(EncoderProfile, GemmaFillsTheBatchWithImages) {
  const Deployment deployment =
      resolved("google/gemma-3-27b-it --max-num-batched-tokens 16384 --max-num-seqs 256");
  const auto batch = encoder_batch(deployment);
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->images, 64);
  EXPECT_EQ(batch->pixels, Bytes{64LL * 896 * 896 * 3 * 2});
  EXPECT_EQ(highest(deployment), Bytes{64LL * 4096 * (588 + 3 * 1152 + 2 * 4304) * 2});
}

// Seven pairs of frames fit into 128,000 tokens, 65,536 patches of 1176 values each. At the end of
// the gated feed-forward of 3420: pixels, what went in, attention's output, their sum and its norm,
// gate and up, activated, output. 15.27 GiB in a public log (vLLM 0.23.0, A100-80GB).
TEST(EncoderProfile, QwenVideosAreAsLongAsAPromptHasRoom) {
  const std::string config = "Qwen__Qwen2.5-VL-7B-Instruct.json";
  const Deployment deployment = resolved("Qwen/Qwen2.5-VL-7B-Instruct", "0.23.0", config);
  const auto batch = encoder_batch(deployment);
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->patches, 7 * 65'536);
  EXPECT_EQ(batch->embeddings, Bytes{7LL * 16'384 * 3584 * 2});
  EXPECT_EQ(highest(deployment), Bytes{7LL * 65'536 * (1176 + 5 * 1280 + 3 * 3420) * 2});

  const auto patches = [&](const std::string& more, const std::string& version) {
    return encoder_batch(resolved("Qwen/Qwen2.5-VL-7B-Instruct " + more, version, config))->patches;
  };
  EXPECT_EQ(patches("--max-model-len 65536", "0.23.0"), 4 * 65'536);
  EXPECT_EQ(patches("--max-model-len 65536", "0.10.0"), 3 * 65'536);  // beside an image
  EXPECT_EQ(patches("--max-model-len 8192", "0.23.0"), 65'536);
  EXPECT_EQ(patches("--limit-mm-per-prompt '{\"video\": 0}'", "0.23.0"), 65'536);
}

// A video of Qwen3-VL counted as 153,600 tokens until 0.12, which 0.11 and 0.12 keep rows for; its
// encoder sees 12,288 of them.
TEST(EncoderProfile, RowsAreKeptForTokensBesideTheEmbeddings) {
  const std::string config = "Qwen__Qwen3-VL-4B-Instruct.json";
  const auto batch = [&](const std::string& version) {
    return *encoder_batch(resolved("Qwen/Qwen3-VL-4B-Instruct", version, config));
  };
  EXPECT_EQ(batch("0.11.0").patches, 4 * 12'288);
  EXPECT_EQ(batch("0.11.0").embeddings, Bytes{153'600LL * 4 * 2560 * 2});
  EXPECT_EQ(batch("0.13.0").patches, 4 * 16'384);  // an image
  EXPECT_EQ(batch("0.13.0").embeddings, Bytes{16'384LL * 4 * 2560 * 2});
}

// Largest images: a square of 1540 pixels, 55 x 55 tokens; 16 tiles and the whole image of 336
// pixels, 144 tokens each; ten tiles and the whole image of 27 x 27 tokens, with one after each of
// 270 rows.
TEST(EncoderProfile, ImagesOfOtherEncoders) {
  const auto batch = [](const std::string& model, const std::string& config) {
    return *encoder_batch(resolved(model + " --max-model-len 8192", "0.19.0", config));
  };
  const auto pixtral = batch("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "");
  EXPECT_EQ(pixtral.images, 2);
  EXPECT_EQ(pixtral.pixels, Bytes{2LL * 1540 * 1540 * 3 * 2});
  EXPECT_EQ(pixtral.embeddings, Bytes{2LL * 3025 * 5120 * 2});
  const auto llama4 = batch("meta-llama/Llama-4-Scout-17B-16E-Instruct -tp 8", "");
  EXPECT_EQ(llama4.images, 3);
  EXPECT_EQ(llama4.pixels, Bytes{3LL * 17 * 336 * 336 * 3 * 2});
  EXPECT_EQ(llama4.embeddings, Bytes{3LL * 17 * 144 * 5120 * 2});
  const auto granite =
      batch("ibm-granite/granite-vision-3.3-2b", "ibm-granite__granite-vision-3.3-2b.json");
  EXPECT_EQ(granite.images, 1);
  EXPECT_EQ(granite.embeddings, Bytes{(11LL * 27 * 27 + 270) * 2048 * 2});
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
