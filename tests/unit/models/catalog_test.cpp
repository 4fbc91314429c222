#include "models/catalog.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/config_reader.hpp"
#include "models/gpu.hpp"
#include "models/kv.hpp"
#include "models/weights.hpp"
#include "sim/core/error.hpp"
#include "tests/unit/models/csv.hpp"

namespace oomcast::models {
namespace {

// Published totals that differ from the text part, with the reason.
const std::map<std::string, std::string> explained = {
    {"Qwen/Qwen3-0.6B", "the checkpoint stores the tied head a second time"},
    {"Qwen/Qwen3-1.7B", "the checkpoint stores the tied head a second time"},
    {"google/gemma-3-4b-it", "published with the vision tower (419816304)"},
    {"google/gemma-3-27b-it", "published with the vision tower (423060336)"},
    {"Qwen/Qwen3.5-35B-A3B", "published with the vision tower and the MTP layer"},
    {"meta-llama/Llama-4-Scout-17B-16E-Instruct", "published with the vision tower (871932416)"},
    {"Qwen/Qwen3-Next-80B-A3B-Instruct", "published with the MTP layer (1650471424)"},
    {"zai-org/GLM-4.5-Air", "published with the MTP layer (3616573568)"},
    {"Qwen/Qwen3-8B-FP8", "published with 423936 block scales"},
    {"MiniMaxAI/MiniMax-M2.5", "published with 13880064 block scales"},
    {"moonshotai/Kimi-K2-Instruct", "published with block scales; 3416 elements unexplained"},
    {"deepseek-ai/DeepSeek-V3", "published with the MTP layer and 41540496 block scales"},
    {"deepseek-ai/DeepSeek-V3.1", "published with the MTP layer and 41540496 block scales"},
    {"deepseek-ai/DeepSeek-R1", "published with the MTP layer and 41540496 block scales"},
    {"openai/gpt-oss-20b", "published with 597196800 MXFP4 scales"},
    {"openai/gpt-oss-120b", "published with 3583180800 MXFP4 scales"},
};

std::string message_of(const std::string& name) {
  try {
    catalog_model(name);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Catalog, EveryEntryReadsShardsAndKeepsKv) {
  const auto names = catalog_names();
  EXPECT_GE(names.size(), 90U);
  for (const std::string& name : names) {
    const ModelSpec spec = catalog_model(name);
    EXPECT_EQ(spec.name, name);
    EXPECT_GT(weights_on_rank(spec, {}).total(), kMiB) << name;
    EXPECT_FALSE(kv_layers(spec, {}).empty()) << name;
    EXPECT_GT(spec.length.derived, Tokens{1024}) << name;
  }
}

TEST(Catalog, ParameterCountsAreThePublishedOnes) {
  const auto rows = read_csv(OOMCAST_TEST_DATA "/models/parameters.csv");
  ASSERT_GT(rows.size(), 55U);
  for (const auto& row : rows) {
    const std::string& name = row.at("model");
    const std::int64_t count = parameter_count(catalog_model(name));
    EXPECT_EQ(count, std::stoll(row.at("parameters"))) << name;
    if (!row.at("published").empty()) {
      EXPECT_EQ(count != std::stoll(row.at("published")), explained.contains(name)) << name;
    }
  }
}

TEST(Catalog, NamesAreCaseBlindAndNeedNoOwnerWhenOnlyOneHasIt) {
  EXPECT_EQ(catalog_model("META-LLAMA/llama-3.1-8b-instruct").name,
            "meta-llama/Llama-3.1-8B-Instruct");
  EXPECT_EQ(catalog_model("qwen3-8b").name, "Qwen/Qwen3-8B");
  EXPECT_EQ(parameter_count(catalog_model("meta-llama/Llama-3.1-405B-Instruct")), 405'853'388'800);
  const std::string twice = message_of("llama-3.1-8b-instruct");
  EXPECT_NE(twice.find("unsloth/Llama-3.1-8B-Instruct"), std::string::npos) << twice;
}

TEST(Catalog, UnknownNameGivesTheNearestAndTheWayOut) {
  const std::string message = message_of("meta-llama/Llama-3.1-8B-Instrct");
  EXPECT_NE(message.find("meta-llama/Llama-3.1-8B-Instruct"), std::string::npos) << message;
  EXPECT_NE(message.find("--model-config"), std::string::npos) << message;
  EXPECT_NE(message_of("").find("--model-config"), std::string::npos);
  EXPECT_NE(message_of(std::string(100000, 'x')).find("--model-config"), std::string::npos);
}

TEST(Gpus, EveryCardIsSound) {
  const auto names = gpu_names();
  EXPECT_GE(names.size(), 43U);
  for (const std::string& name : names) {
    const GpuSpec gpu = find_gpu(name);
    EXPECT_LE(gpu.device_total, gpu.nvml_total) << name;
    EXPECT_GE(to_gib(gpu.device_total), 0.9 * to_gib(gpu.nvml_total)) << name;
    EXPECT_GT(gpu.bandwidth, 1e11) << name;
    EXPECT_GT(gpu.bf16.peak_flops, 1e13) << name;
    EXPECT_GT(gpu.sm_count, 20) << name;
    EXPECT_GT(gpu.context_bytes, kMiB * 50) << name;
    for (const std::string& alias : gpu.aliases) {
      EXPECT_EQ(find_gpu(alias).name, name) << alias;
    }
  }
}

TEST(Gpus, H100IsTheRecordedCard) {
  const GpuSpec gpu = find_gpu("h100-80gb");
  EXPECT_EQ(gpu.name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(gpu.device_total, Bytes{85029158912}) << "79.19 GiB";
  EXPECT_EQ(gpu.nvml_total, kMiB * 81559);
  EXPECT_EQ(gpu.compute_major, 9);
  EXPECT_EQ(gpu.l2_bytes, kMiB * 50);
  // 8 MiB + 132 x 2048 x 1.94 KiB = 520 MiB
  EXPECT_NEAR(to_mib(gpu.context_bytes), 520.2, 0.1);
  EXPECT_EQ(gpu.fp8.peak_flops, 1979e12);
}

TEST(Gpus, UnknownCardGivesTheNearest) {
  for (const auto& [given, nearest] :
       {std::pair{"RTX4091", "RTX4090"}, std::pair{"A10O-80GB", "A100-80GB"}}) {
    try {
      find_gpu(given);
      FAIL() << given;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(nearest), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(find_gpu(""), ConfigError);
}

}  // namespace
TEST(Changes, NestedConfigsJoinAndOtherKeysAreReplaced) {
  const Json config = {{"a", {{"x", 1}, {"y", 2}}},
                       {"text_config", {{"layers", 8}, {"rope", {{"theta", 1}}}}},
                       {"rope_parameters", {{"rope_theta", 5}}}};
  const Json changes = {{"a", {{"x", 3}}},
                        {"text_config", {{"rope", {{"factor", 4}}}}},
                        {"rope_scaling", {{"factor", 2}}},
                        {"b", nullptr}};
  const Json expected = {{"a", {{"x", 3}}},
                         {"text_config", {{"layers", 8}, {"rope", {{"theta", 1}, {"factor", 4}}}}},
                         {"rope_parameters", {{"rope_theta", 5}, {"factor", 2}}},
                         {"b", nullptr}};
  EXPECT_EQ(with_changes(config, changes), expected);
  EXPECT_EQ(with_changes(config, nullptr), config);
}

}  // namespace oomcast::models
