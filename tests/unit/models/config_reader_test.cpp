// Configs as strangers publish them: nested, incomplete, contradictory, hostile, of another kind.
#include "models/config_reader.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "models/catalog.hpp"
#include "models/data.hpp"
#include "models/weights.hpp"
#include "tests/unit/models/config_path.hpp"

namespace oomcast::models {
namespace {

Json llama() { return embedded_json("catalog/meta-llama__Llama-3.1-8B-Instruct.json"); }

std::string refusal(const Json& config) {
  try {
    read_model_config(config, "config.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

void expect_mentions(const Json& config, const std::vector<std::string>& parts) {
  const std::string message = refusal(config);
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

TEST(ConfigReader, ReportsEverythingAtOnce) {
  Json config = llama();
  config["hidden_size"] = "4096";
  config["num_hidden_layers"] = -1;
  config["vocab_size"] = 3.5;
  config.erase("intermediate_size");
  expect_mentions(
      config, {"hidden_size", "\"4096\"", "num_hidden_layers", "vocab_size", "intermediate_size"});
}

TEST(ConfigReader, HugeSizesAreRefusedBeforeAnyProductOverflows) {
  for (const char* const key : {"hidden_size", "num_hidden_layers", "vocab_size",
                                "num_attention_heads", "max_position_embeddings"}) {
    Json config = llama();
    config[key] = std::int64_t{1} << 62;
    expect_mentions(config, {key});
    config[key] = 1e300;
    expect_mentions(config, {key});
  }
  // Each in range, together not a model.
  Json config = llama();
  config["hidden_size"] = 1 << 20;
  config["intermediate_size"] = 1 << 22;
  config["num_hidden_layers"] = 1024;
  config["vocab_size"] = 1 << 26;
  expect_mentions(config, {"2^50 parameters"});
}

TEST(ConfigReader, ContradictionsAreNamed) {
  Json config = llama();
  config["num_key_value_heads"] = 5;
  expect_mentions(config, {"num_key_value_heads", "divisor of num_attention_heads 32"});
  config = llama();
  config["num_attention_heads"] = 30;
  config["num_key_value_heads"] = 10;
  expect_mentions(config, {"num_attention_heads", "divisor of hidden_size 4096"});
  config = llama();
  config["layer_types"] = {"full_attention"};
  expect_mentions(config, {"layer_types", "32 entries"});
  config = llama();
  config["layer_types"] = Json::array();
  for (int i = 0; i < 32; ++i) {
    config["layer_types"].push_back("sliding_attention");
  }
  expect_mentions(config, {"sliding_window", "layer_types"});
}

TEST(ConfigReader, UnknownArchitectureGivesTheNearest) {
  Json config = llama();
  config["architectures"] = {"LlamaForCausaLM"};
  expect_mentions(config, {"LlamaForCausaLM", "did you mean `LlamaForCausalLM`?"});
  config["architectures"] = {"BertForMaskedLM"};
  expect_mentions(config, {"BertForMaskedLM", "architecture"});
  config["architectures"] = 7;
  EXPECT_NE(refusal(config), "");
}

TEST(ConfigReader, FilesOfAnotherKindAreRecognised) {
  expect_mentions(Json{{"tokenizer_class", "LlamaTokenizer"}}, {"tokenizer configuration"});
  expect_mentions(Json{{"weight_map", Json::object()}}, {"index of a checkpoint"});
  expect_mentions(Json{{"peft_type", "LORA"}}, {"LoRA adapter"});
  expect_mentions(Json{{"_class_name", "FluxPipeline"}}, {"diffusion"});
  expect_mentions(Json{{"do_sample", true}}, {"generation_config.json"});
  expect_mentions(Json::object(), {"config.json"});
  expect_mentions(Json::array({1, 2}), {"a JSON object"});
  expect_mentions(Json(nullptr), {"a JSON object"});
}

TEST(ConfigReader, ModelTypeStandsInForArchitectures) {
  Json config = llama();
  config.erase("architectures");
  const ModelSpec spec = read_model_config(config, "config.json");
  EXPECT_EQ(spec.architecture, "LlamaForCausalLM");
  ASSERT_FALSE(spec.assumptions.empty());
  EXPECT_EQ(spec.assumptions.front().key, "architectures");
}

TEST(ConfigReader, ClassDefaultsAreListedAsAssumptions) {
  const ModelSpec spec = catalog_model("google/gemma-3-4b-it");
  EXPECT_EQ(spec.vocabulary, 262208);
  EXPECT_TRUE(spec.tie_word_embeddings);
  for (const char* const key : {"num_attention_heads", "num_key_value_heads", "vocab_size",
                                "head_dim", "tie_word_embeddings", "max_position_embeddings"}) {
    EXPECT_TRUE(std::any_of(spec.assumptions.begin(), spec.assumptions.end(),
                            [&](const Assumption& assumption) { return assumption.key == key; }))
        << key;
  }
  EXPECT_EQ(parameter_count(spec, Component::kVision), 419'816'304);
}

TEST(ConfigReader, SizesThatOnlyTheFileKnowsAreNeverInvented) {
  for (const char* const key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                                "intermediate_size", "vocab_size"}) {
    for (const bool null : {false, true}) {
      Json config = llama();
      if (null) {
        config[key] = nullptr;
      } else {
        config.erase(key);
      }
      expect_mentions(config, {key});
    }
  }
}

TEST(ConfigReader, NullsReadAsAbsent) {
  Json config = llama();
  config["rope_scaling"] = nullptr;
  config["head_dim"] = nullptr;
  config["sliding_window"] = nullptr;
  config["quantization_config"] = nullptr;
  EXPECT_EQ(parameter_count(read_model_config(config, "c")), 8'030'261'248);
}

TEST(ConfigReader, NestedLanguageModels) {
  Json outer;
  outer["architectures"] = {"LlavaForConditionalGeneration"};
  outer["model_type"] = "llava";
  outer["text_config"] = llama();
  outer["vision_config"] = {{"hidden_size", 1024}};
  ModelSpec spec = read_model_config(outer, "c");
  EXPECT_EQ(parameter_count(spec), 8'030'261'248);
  EXPECT_EQ(spec.architecture, "LlavaForConditionalGeneration");
  EXPECT_EQ(spec.family, "llama");
  outer["text_config"]["architectures"] = {"LlavaForConditionalGeneration"};
  expect_mentions(outer, {"text_config.architectures"});
  outer.erase("text_config");
  expect_mentions(outer, {"text_config"});
}

TEST(ConfigReader, QuantisationBlockIsKept) {
  Json config = llama();
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"weight_block_size", {128, 128}},
                                   {"activation_scheme", "dynamic"},
                                   {"modules_to_not_convert", {"lm_head"}}};
  const ModelSpec spec = read_model_config(config, "c");
  const Quantization quantization = spec.quantization.value();
  EXPECT_EQ(quantization.method, "fp8");
  EXPECT_EQ(quantization.block_rows, 128);
  EXPECT_EQ(quantization.ignore, std::vector<std::string>{"lm_head"});
  config["quantization_config"]["weight_block_size"] = {0, 128};
  expect_mentions(config, {"quantization_config.weight_block_size"});
  config["quantization_config"] = "fp8";
  expect_mentions(config, {"quantization_config"});
  config["quantization_config"] = Json::object();
  expect_mentions(config, {"quant_method"});
}

TEST(ConfigReader, RopeParametersOfAnyShapeAreReadOrRefused) {
  Json config = llama();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  ModelSpec spec = read_model_config(config, "c");
  EXPECT_EQ(spec.ropes.front().table_rows, 4 * 131072);
  EXPECT_EQ(spec.length.derived, Tokens{4 * 131072});
  for (const Json& factor : {Json(0), Json(-2.0), Json(1e12)}) {
    config["rope_scaling"]["factor"] = factor;
    expect_mentions(config, {"rope_scaling"});
  }
  config["rope_scaling"] = "linear";
  expect_mentions(config, {"rope_scaling"});
  config["rope_scaling"] = nullptr;
  config["partial_rotary_factor"] = 17;
  expect_mentions(config, {"partial_rotary_factor"});
}

TEST(ConfigReader, FoldersFilesAndMissingOnes) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "oomcast_model_folder";
  fs::create_directories(folder);
  EXPECT_THROW(read_model_config(folder.string()), ConfigError);
  std::ofstream(folder / "config.json") << llama();
  std::ofstream(folder / "hf_quant_config.json") << R"({"producer": {"name": "modelopt"},
             "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
                              "exclude_modules": ["lm_head"]}})";
  const ModelSpec spec = read_model_config(folder.string());
  const Quantization quantization = spec.quantization.value();
  EXPECT_EQ(quantization.method, "modelopt");
  EXPECT_EQ(quantization.weight_bits, 8);
  EXPECT_EQ(quantization.kv_cache, "fp8");
  std::ofstream(folder / "config.json") << "{\"architectures\": [";
  EXPECT_THROW(read_model_config((folder / "config.json").string()), ConfigError);
  fs::remove_all(folder);
  EXPECT_THROW(read_model_config(folder.string()), ConfigError);
}

Json carried(const std::string& file) { return read_json_file(config_path(file)); }

TEST(ConfigReader, PatternsThatDoNotFitTheLayersAreNamed) {
  Json mimo = carried("XiaomiMiMo__MiMo-V2-Flash.json");
  mimo.erase("hybrid_layer_pattern");
  expect_mentions(mimo, {"hybrid_layer_pattern", "48 zeros and ones"});
  Json nemotron = carried("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json");
  nemotron["hybrid_override_pattern"] = "MEX";
  expect_mentions(nemotron, {"hybrid_override_pattern"});
  nemotron["hybrid_override_pattern"] = "ME*";
  expect_mentions(nemotron, {"num_hidden_layers", "3, as many as the pattern"});
  Json gemma = carried("google__gemma-4-E2B-it.json");
  gemma["text_config"]["num_kv_shared_layers"] = 35;
  expect_mentions(gemma, {"num_kv_shared_layers"});
  Json v4 = carried("deepseek-ai__DeepSeek-V4-Flash.json");
  v4["compress_ratios"][5] = 7;
  expect_mentions(v4, {"compress_ratios", "0, 4 or 128"});
  v4["o_groups"] = 7;
  expect_mentions(v4, {"o_groups", "compress_ratios"});
}

TEST(ConfigReader, AWindowNeedsItsLayers) {
  Json step = {{"architectures", {"Step3p5ForCausalLM"}},
               {"num_hidden_layers", 2},
               {"hidden_size", 64},
               {"num_attention_heads", 4},
               {"intermediate_size", 128},
               {"vocab_size", 1000},
               {"sliding_window", 16},
               {"moe_num_experts", 4},
               {"moe_top_k", 2},
               {"moe_intermediate_size", 32}};
  expect_mentions(step, {"layer_types", "sliding_window"});
}

TEST(ConfigReader, CustomCodeIsSaidToBe) {
  expect_mentions(Json{{"architectures", {"MyOwnForCausalLM"}},
                       {"auto_map", {{"AutoModelForCausalLM", "modeling_my_own.MyOwn"}}}},
                  {"MyOwnForCausalLM", "auto_map"});
}

TEST(ConfigReader, ATowerThatContradictsItselfIsRefused) {
  Json gemma = carried("google__gemma-4-E2B-it.json");
  gemma["vision_config"]["num_attention_heads"] = 7;
  expect_mentions(gemma, {"vision_config.num_attention_heads", "768"});
  gemma = carried("google__gemma-4-E2B-it.json");
  gemma["audio_config"].erase("hidden_size");
  expect_mentions(gemma, {"audio_config.hidden_size"});
}

}  // namespace
}  // namespace oomcast::models
