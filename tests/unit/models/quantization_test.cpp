// Bytes of quantised checkpoints: scale counts as published, ignore lists, refusals.
#include "models/quantization.hpp"

#include <gtest/gtest.h>

#include "models/catalog.hpp"
#include "models/config_reader.hpp"
#include "models/data.hpp"
#include "models/weights.hpp"
#include "sim/core/error.hpp"
#include "tests/unit/models/config_path.hpp"

namespace oomcast::models {
namespace {

Json llama() { return embedded_json("catalog/meta-llama__Llama-3.1-8B-Instruct.json"); }

// Elements of all tensors whose suffix starts with `suffix`.
std::int64_t elements(const RankWeights& weights, std::string_view suffix) {
  std::int64_t sum = 0;
  for (const TensorBytes& tensor : weights.tensors) {
    if (tensor.suffix.starts_with(suffix)) {
      sum += tensor.bytes.count() * 8 / bits_of(tensor.dtype);
    }
  }
  return sum;
}

TEST(Quantization, BlockScalesAreThePublishedNumbers) {
  EXPECT_EQ(elements(weights_on_rank(catalog_model("Qwen/Qwen3-8B-FP8"), {}), "_scale_inv"),
            423'936);
  EXPECT_EQ(elements(weights_on_rank(catalog_model("MiniMaxAI/MiniMax-M2.5"), {}), "_scale_inv"),
            13'880'064);
}

TEST(Quantization, Fp8CheckpointWeighsAByteAParameterOfItsLinears) {
  const RankWeights plain = weights_on_rank(catalog_model("Qwen/Qwen3-8B"), {});
  const RankWeights fp8 = weights_on_rank(catalog_model("Qwen/Qwen3-8B-FP8"), {});
  // Linears: everything but embedding, head and norms.
  const std::int64_t kept = 2LL * 151936 * 4096 + 36LL * (2 * 4096 + 2 * 128) + 4096;
  const std::int64_t linears = 8'190'735'360 - kept;
  EXPECT_EQ(plain.weights - fp8.weights, Bytes{linears});
}

TEST(Quantization, OnLineFp8KeepsOneScaleALinear) {
  const ModelSpec spec = catalog_model("meta-llama/Llama-3.1-8B-Instruct");
  const RankWeights fp8 = weights_on_rank(spec, {.online_quantization = "fp8"});
  EXPECT_EQ(elements(fp8, "_scale"), 32 * 4);
  const std::int64_t kept = 2LL * 128256 * 4096 + (2 * 32 + 1) * 4096LL;
  EXPECT_EQ(fp8.weights, Bytes{2 * kept + (8'030'261'248 - kept)});
  EXPECT_THROW(weights_on_rank(spec, {.online_quantization = "nvfp4"}), ConfigError);
}

// DeepSeek V3.2: a key of 128 x 7168 in each of 61 layers, 2048 tokens chosen for a row; its YaRN
// table is 163840 x 64, in fp32 where FlashInfer rotates.
TEST(Quantization, AnIndexersKeyChoicesAndRopeFollowTheEngine) {
  Json config = embedded_json("catalog/deepseek-ai__DeepSeek-V3.1.json");
  config["architectures"] = {"DeepseekV32ForCausalLM"};
  config["model_type"] = "deepseek_v32";
  config["index_n_heads"] = 64;
  config["index_head_dim"] = 128;
  config["index_topk"] = 2048;
  const ModelSpec spec = read_model_config(config, "c");
  const RankWeights plain = weights_on_rank(spec, {.tp = 8});
  const RankWeights kept = weights_on_rank(
      spec, {.tp = 8,
             .indexer = {.key_in_16_bits = true, .own_rope = true, .choice_rows = 1025},
             .flashinfer_ropes = true});
  EXPECT_EQ(kept.weights - plain.weights, Bytes{61LL * 128 * 7168});
  EXPECT_EQ(plain.scales - kept.scales, Bytes{61LL * 56 * 4});
  EXPECT_EQ(kept.buffers - plain.buffers,
            Bytes{61LL * 1025 * (2048 + 1) * 4 + 163840LL * 64 * (2 * 4 - 2)});
  // One pairing for both: one table.
  config["indexer_rope_interleave"] = true;
  const RankWeights shared =
      weights_on_rank(read_model_config(config, "c"), {.tp = 8, .indexer = {.own_rope = true}});
  EXPECT_EQ(shared.buffers, plain.buffers);
}

TEST(Quantization, Int4WithZeroPoints) {
  Json config = llama();
  config["quantization_config"] = {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"zero_point", true}};
  const ModelSpec spec = read_model_config(config, "c");
  const std::int64_t linears = 8'030'261'248 - (2LL * 128256 * 4096 + (2 * 32 + 1) * 4096LL);
  const RankWeights hopper = weights_on_rank(spec, {.compute_major = 9});
  const RankWeights ampere = weights_on_rank(spec, {.compute_major = 8});
  const Bytes attention_scales{32 * 4 * 4};
  // 2 B scale and 2 B zero point a group on Hopper, 0.5 B packed on others.
  EXPECT_EQ(hopper.scales, attention_scales + Bytes{linears / 128 * 4});
  EXPECT_EQ(ampere.scales, attention_scales + Bytes{linears / 128 * 5 / 2});
}

TEST(Quantization, IgnoredModulesStayIn16Bits) {
  const auto fp8_bytes = [](const Json& ignored) {
    Json config = llama();
    config["quantization_config"] = {{"quant_method", "fp8"}, {"modules_to_not_convert", ignored}};
    return weights_on_rank(read_model_config(config, "c"), {}).weights;
  };
  const Bytes all = fp8_bytes({"lm_head"});
  const Bytes qkv{4096LL * 6144};
  const Bytes down{4096LL * 14336};
  EXPECT_EQ(fp8_bytes({"model.layers.3.self_attn.k_proj"}), all + qkv) << "one part names them all";
  EXPECT_EQ(
      fp8_bytes({"model.layers.3.self_attn.k_proj", "model.language_model.layers.4.mlp.down_proj"}),
      all + qkv + down);
  EXPECT_EQ(fp8_bytes({"re:.*mlp\\.down_proj$"}), all + down * 32);
  EXPECT_EQ(fp8_bytes({"model.layers.1*"}), all + (qkv + down * 3 + Bytes{4096LL * 4096}) * 11)
      << "layers 1 and 10 to 19";
  EXPECT_EQ(fp8_bytes({"mlp"}), all + down * 3 * 32);
  EXPECT_EQ(fp8_bytes({"mlp.down"}), all) << "parts match whole components only";
  EXPECT_EQ(fp8_bytes({"re:((a*)*)*b"}), all);
  EXPECT_THROW(fp8_bytes({"re:("}), ConfigError);
  EXPECT_THROW(fp8_bytes({"re:" + std::string(100000, '(')}), ConfigError);
}

// Lists long enough to take minutes are refused at once.
TEST(Quantization, HostileIgnoreListsAreBounded) {
  Json config = llama();
  config["num_hidden_layers"] = 1024;
  for (const char* const pattern : {"a", "layers.*b", "re:.*1.*2.*3.*"}) {
    config["quantization_config"] = {{"quant_method", "fp8"},
                                     {"ignore", std::vector<std::string>(5000, pattern)}};
    EXPECT_THROW(read_model_config(config, "c"), ConfigError) << pattern;
  }
}

TEST(Quantization, SchemesWithoutByteRulesAreRefusedByName) {
  for (const Json& block :
       {Json{{"quant_method", "aqlm"}},
        Json{{"quant_method", "compressed-tensors"}, {"format", "mixed-precision"}}}) {
    Json config = llama();
    config["quantization_config"] = block;
    const ModelSpec spec = read_model_config(config, "c");
    try {
      weights_on_rank(spec, {});
      FAIL();
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(block["quant_method"].get<std::string>()),
                std::string::npos);
      EXPECT_NE(std::string(error.what()).find("awq"), std::string::npos) << "what is supported";
    }
  }
}

DType dtype_of(const RankWeights& weights, int layer, std::string_view name) {
  const auto at =
      std::find_if(weights.tensors.begin(), weights.tensors.end(), [&](const TensorBytes& tensor) {
        return tensor.layer == layer && tensor.name == name && tensor.suffix.empty();
      });
  EXPECT_NE(at, weights.tensors.end()) << layer << " " << name;
  return at == weights.tensors.end() ? DType::kInt64 : at->dtype;
}

TEST(Quantization, EachModuleFollowsTheAlgorithmThatNamesIt) {
  Json config = llama();
  config["num_hidden_layers"] = 2;
  const Json file = {{"quantization",
                      {{"quant_algo", "MIXED_PRECISION"},
                       {"quantized_layers",
                        {{"model.layers.0.mlp.gate_proj", {{"quant_algo", "NVFP4"}}},
                         {"model.layers.0.mlp.up_proj", {{"quant_algo", "NVFP4"}}},
                         {"model.layers.1.mlp.down_proj", {{"quant_algo", "MXFP8"}}},
                         {"lm_head", {{"quant_algo", "FP8"}}}}}}}};
  const RankWeights weights = weights_on_rank(read_model_config(config, "c", file), {});
  EXPECT_EQ(dtype_of(weights, 0, "mlp.gate_up_proj.weight"), DType::kFloat4);
  EXPECT_EQ(dtype_of(weights, 0, "mlp.down_proj.weight"), DType::kBFloat16);
  EXPECT_EQ(dtype_of(weights, 1, "mlp.gate_up_proj.weight"), DType::kBFloat16);
  EXPECT_EQ(dtype_of(weights, 1, "mlp.down_proj.weight"), DType::kFloat8);
  EXPECT_EQ(dtype_of(weights, 1, "self_attn.qkv_proj.weight"), DType::kBFloat16);
  EXPECT_EQ(dtype_of(weights, -1, "lm_head.weight"), DType::kFloat8);
  EXPECT_EQ(dtype_of(weights, -1, "embed_tokens.weight"), DType::kBFloat16);
}

TEST(Quantization, DeepSeekV4HasFourBitExpertsAmongBlocksOfEight) {
  const RankWeights weights =
      weights_on_rank(read_model_config(config_path("deepseek-ai__DeepSeek-V4-Flash.json")), {});
  EXPECT_EQ(dtype_of(weights, 5, "mlp.experts.w13.weight"), DType::kFloat4);
  EXPECT_EQ(dtype_of(weights, 5, "mlp.shared_experts.gate_up_proj.weight"), DType::kFloat8);
  EXPECT_EQ(dtype_of(weights, 5, "attn.wq_b.weight"), DType::kFloat8);
  EXPECT_EQ(dtype_of(weights, 5, "attn.compressor.fused_wkv_wgate.weight"), DType::kBFloat16);
  // A byte for 32 values of the experts, and for every block of the rest.
  const std::int64_t expert_scales = 43LL * 256 * 3 * 4096 * 2048 / 32;
  EXPECT_EQ(elements(weights, "_scale") - elements(weights, "_scale_inv"), expert_scales);
  const std::int64_t bytes = 43LL * 256 * 3 * 4096 * 2048 / 2 + expert_scales;
  EXPECT_GT(weights.total(), Bytes{bytes});
}

TEST(Quantization, SchemesAndAlgorithmsAreBounded) {
  Json config = llama();
  Json layers = Json::object();
  for (int i = 0; i < 100; ++i) {
    layers[fmt::format("model.layers.{}.mlp", i)] = {{"quant_algo", fmt::format("A{}", i)}};
  }
  config["quantization_config"] = {{"quant_method", "modelopt"},
                                   {"quant_algo", "MIXED_PRECISION"},
                                   {"quantized_layers", layers}};
  EXPECT_THROW(read_model_config(config, "c"), ConfigError);
}

}  // namespace
}  // namespace oomcast::models
