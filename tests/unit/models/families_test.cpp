// Families beyond the plain decoder: what they keep per token and per sequence, how they shard.
#include <gtest/gtest.h>

#include <map>
#include <string_view>

#include "models/catalog.hpp"
#include "models/config_reader.hpp"
#include "models/kv.hpp"
#include "models/weights.hpp"
#include "sim/core/error.hpp"

namespace oomcast::models {
namespace {

TEST(Families, MlaKeepsOneLatentOnEveryRank) {
  const ModelSpec spec = catalog_model("deepseek-ai/DeepSeek-V3");
  for (const int tp : {1, 8}) {
    const auto layers = kv_layers(spec, {.tp = tp, .ep = 1});
    ASSERT_EQ(layers.size(), 61U);
    EXPECT_EQ(kv_bytes_per_token(layers, DType::kBFloat16), Bytes{70272}) << "61 x 576 x 2";
  }
  EXPECT_EQ(spec.length.derived, Tokens{163840}) << "yarn: 40 x 4096";
  EXPECT_EQ(spec.layer(2).ffn.kind, FfnKind::kGated) << "the first three layers are dense";
  EXPECT_EQ(spec.layer(3).ffn.kind, FfnKind::kMoe);
  EXPECT_EQ(spec.layer(3).ffn.experts, 256);
}

TEST(Families, GatedDeltaNetStateOfQwen3Next) {
  const ModelSpec spec = catalog_model("Qwen/Qwen3-Next-80B-A3B-Instruct");
  const auto bytes = [&](DType dtype, std::optional<DType> recurrent) {
    Bytes sum;
    for (KvLayerSpec layer : kv_layers(spec, {})) {
      layer.recurrent_dtype = recurrent;
      sum += state_bytes(layer, dtype);
    }
    return to_mib(sum);
  };
  EXPECT_NEAR(bytes(DType::kBFloat16, std::nullopt), 37.7, 0.05);
  EXPECT_NEAR(bytes(DType::kBFloat16, DType::kFloat32), 73.7, 0.05);
  // 12 full layers of 2 KV heads x 256.
  EXPECT_EQ(kv_bytes_per_token(kv_layers(spec, {}), DType::kBFloat16), Bytes{12 * 2 * 2 * 256 * 2});
}

TEST(Families, ExpertsAreSplitOrDividedWhole) {
  const ModelSpec spec = catalog_model("Qwen/Qwen3-30B-A3B");
  const auto experts = [&](const ShardPlan& plan) {
    Bytes sum;
    for (const TensorBytes& tensor : weights_on_rank(spec, plan).tensors) {
      sum += tensor.name.starts_with("mlp.experts") ? tensor.bytes : Bytes{0};
    }
    return sum;
  };
  const Bytes all{48LL * 128 * 3 * 768 * 2048 * 2};
  EXPECT_EQ(experts({}), all);
  EXPECT_EQ(experts({.tp = 4}) * 4, all);
  EXPECT_EQ(experts({.tp = 4, .ep = 4}) * 4, all);
  EXPECT_THROW(weights_on_rank(spec, {.ep = 3}), ConfigError);
}

TEST(Families, GptOssAlternatesWindows) {
  const ModelSpec spec = catalog_model("openai/gpt-oss-20b");
  for (int i = 0; i < spec.layer_count(); ++i) {
    EXPECT_EQ(spec.layer(i).attention.kind,
              i % 2 == 0 ? AttentionKind::kSlidingWindow : AttentionKind::kFull);
    EXPECT_TRUE(spec.layer(i).attention.sinks);
  }
  EXPECT_EQ(spec.layer(0).attention.window, Tokens{128});
}

TEST(Families, Llama4AttendsInChunksButEveryFourthLayer) {
  const ModelSpec spec = catalog_model("meta-llama/Llama-4-Scout-17B-16E-Instruct");
  for (int i = 0; i < spec.layer_count(); ++i) {
    const AttentionSpec& attention = spec.layer(i).attention;
    EXPECT_EQ(attention.kind, i % 4 == 3 ? AttentionKind::kFull : AttentionKind::kChunked) << i;
    EXPECT_EQ(attention.rope < 0, i % 4 == 3) << "full layers have no rotary embedding";
  }
  EXPECT_EQ(spec.layer(0).attention.window, Tokens{8192});
  EXPECT_EQ(spec.layer(0).ffn.shared_width, 8192);
}

// Recorded with vLLM 0.33 on one of four ranks: 11534336 B of the adapter's first matrix.
TEST(Families, Llama4DividesWhatFollowsItsEncoder) {
  const ModelSpec spec = catalog_model("meta-llama/Llama-4-Scout-17B-16E-Instruct");
  std::map<std::string_view, Bytes> sizes;
  const RankWeights rank = weights_on_rank(spec, {.tp = 4, .towers = true});
  for (const TensorBytes& tensor : rank.tensors) {
    sizes[tensor.name] = tensor.bytes;
  }
  EXPECT_EQ(sizes["vision_adapter.mlp.fc1.weight"], Bytes{11'534'336});
  EXPECT_EQ(sizes["vision_adapter.mlp.fc2.weight"], Bytes{8'388'608});
  EXPECT_EQ(sizes["multi_modal_projector.linear_1.weight"], Bytes{5120 / 4 * 4096 * 2});
}

TEST(Families, GlmKeepsItsRoutersInFp32) {
  const ModelSpec spec = catalog_model("zai-org/GLM-4.5-Air");
  EXPECT_EQ(weights_on_rank(spec, {.tp = 2}).weights, Bytes{106923428352})
      << "parameters that SGLang recorded on one of two ranks";
}

TEST(Families, EagleHeadsUseTheTargetsEmbedding) {
  const Json config = {{"architectures", {"LlamaForCausalLMEagle3"}},
                       {"hidden_size", 4096},
                       {"intermediate_size", 14336},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 32},
                       {"num_key_value_heads", 8},
                       {"vocab_size", 128256},
                       {"draft_vocab_size", 32000},
                       {"max_position_embeddings", 2048},
                       {"tie_word_embeddings", false},
                       {"torch_dtype", "bfloat16"}};
  const ModelSpec spec = read_model_config(config, "config.json");
  // 3 h x h, q/k/v over 2 h, o, gate/up/down, four norms, the draft's head.
  EXPECT_EQ(parameter_count(spec), 3LL * 4096 * 4096 + 2LL * 4096 * (4096 + 2048) + 4096LL * 4096 +
                                       3LL * 4096 * 14336 + 4 * 4096 + 32000LL * 4096);
  EXPECT_EQ(kv_bytes_per_token(kv_layers(spec, {}), DType::kBFloat16), Bytes{4096});
}

}  // namespace
}  // namespace oomcast::models
