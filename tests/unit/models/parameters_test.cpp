// Parameter counts against published totals, and where there is none against counts by other hands.
#include <gtest/gtest.h>

#include <iostream>
#include <map>

#include "models/config_reader.hpp"
#include "models/weights.hpp"
#include "tests/unit/models/config_path.hpp"
#include "tests/unit/models/csv.hpp"

namespace oomcast::models {
namespace {

// Rows whose published total is not a count of elements (it packs 4-bit values, or was estimated);
// the recomputed counts hold instead.
const std::map<std::string, std::string>& other_units() {
  static const std::map<std::string, std::string> rows = {
      {"deepseek-ai/DeepSeek-V4-Flash", "packs 4-bit experts two in one"},
      {"deepseek-ai/DeepSeek-V4-Pro", "packs 4-bit experts two in one"},
      {"internlm/internlm2-7b", "an estimate: internlm2_5-7b-chat has the same shape"},
      {"meta-llama/Llama-3.2-11B-Vision-Instruct", "an estimate: 90B agrees to the last unit"},
      {"moonshotai/Kimi-K2-Thinking", "packs int4, counts its scales and shapes"},
      {"moonshotai/Kimi-K2.5", "counts int4 scales and shapes"},
      {"nvidia/DeepSeek-V3-0324-NVFP4", "packs 4-bit values"},
      {"nvidia/DeepSeek-V3.1-NVFP4", "packs 4-bit values"},
      {"nvidia/DeepSeek-V3.2-NVFP4", "packs 4-bit values"},
      {"nvidia/Gemma-4-26B-A4B-NVFP4", "packs 4-bit values"},
      {"nvidia/Gemma-4-31B-IT-NVFP4", "packs 4-bit values"},
      {"nvidia/GLM-5-NVFP4", "packs 4-bit values"},
      {"nvidia/MiniMax-M2.5-NVFP4", "packs 4-bit values"},
      {"nvidia/MiniMax-M2.7-NVFP4", "packs 4-bit values"},
      {"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "packs 4-bit values"},
      {"nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "packs 4-bit values"},
      {"nvidia/Qwen3-30B-A3B-NVFP4", "packs 4-bit values"},
      {"openbmb/MiniCPM3-4B", "an estimate: recorded weights agree with the count here"},
      {"Qwen/Qwen2-VL-2B-Instruct-AWQ", "packs 4-bit values"},
  };
  return rows;
}

struct Exception {
  std::int64_t more = 0;  // published less counted
  std::string reason;
};

// Rows whose published total is a count of elements, but not of these elements.
const std::map<std::string, Exception>& exceptions() {
  static const std::map<std::string, Exception> rows = {
      {"google/gemma-3-12b-it", {245'760, "its copied file has 262144 words, the model 262208"}},
      {"google/gemma-3n-E4B", {983'438'688, "its copied file has no towers"}},
      {"google/gemma-4-E4B-it", {308'756'768, "its copied file has no audio tower"}},
      {"microsoft/Phi-3-small-8k-instruct", {2'048, "64 rotary frequencies a layer are stored"}},
      {"moonshotai/Kimi-K2-Instruct", {3'416, "unexplained: 56 a layer"}},
      {"nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
       {-2'944, "128 correction biases in 23 layers are not counted there"}},
      {"nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
       {-20'992, "512 correction biases in 41 layers are not counted there"}},
      {"openai/gpt-oss-120b",
       {3'583'180'800, "a scale for every 32 values; engines pad experts and with them scales"}},
      {"openai/gpt-oss-20b",
       {597'196'800, "a scale for every 32 values; engines pad experts and with them scales"}},
      {"Qwen/Qwen3-Next-80B-A3B-Instruct-FP8",
       {4'921'664, "block scales; its copied file does not say that it is quantised"}},
      {"stepfun-ai/step3-text-fp8", {4'675'374'592, "the vision tower, which its file leaves out"}},
      {"Qwen/Qwen3-0.6B", {155'582'464, "the checkpoint stores the tied head too"}},
      {"Qwen/Qwen3-1.7B", {311'164'928, "the checkpoint stores the tied head too"}},
      {"Qwen/Qwen3-Embedding-8B", {-621'219'840, "an embedding model stores no head"}},
      {"Qwen/Qwen3-VL-235B-A22B-Thinking", {414'720, "its copied file has patches of 14, not 16"}},
      {"XiaomiMiMo/MiMo-V2-Flash",
       {-97'728,
        "its copied file does not say that output projections stay in 16 bits, so they have "
        "block scales; 576 unexplained"}},
  };
  return rows;
}

struct Counted {
  std::int64_t parameters = 0;
  std::int64_t scales = 0;  // elements of weight scales, as a checkpoint stores them
};

// Input scales are engines' business, and absorbed copies no checkpoint's.
std::int64_t count_scales(const ModelSpec& spec) {
  if (!spec.quantization) {
    return 0;
  }
  std::int64_t elements = 0;
  for (const TensorBytes& tensor : weights_on_rank(spec, {.towers = true, .draft = true}).tensors) {
    if (tensor.suffix == "_scale" || tensor.suffix == "_scale_inv") {
      elements += tensor.bytes.count() * 8 / bits_of(tensor.dtype);
    }
  }
  return elements;
}

std::int64_t all_parameters(const ModelSpec& spec) {
  std::int64_t sum = 0;
  for (const Component component :
       {Component::kText, Component::kVision, Component::kAudio, Component::kMtp}) {
    sum += parameter_count(spec, component);
  }
  return sum;
}

// Whether the published total is met exactly, with or without scales, or misses by what is known.
void expect_published(const std::string& model, const ModelSpec& spec, std::int64_t published) {
  const std::int64_t parameters = all_parameters(spec);
  const auto known = exceptions().find(model);
  const std::int64_t more = known == exceptions().end() ? 0 : known->second.more;
  const std::int64_t scales = count_scales(spec);
  EXPECT_TRUE(published == parameters + more || published == parameters + scales + more)
      << model << ": " << published << " published, " << parameters << " counted, " << scales
      << " scales; " << (known == exceptions().end() ? "" : known->second.reason) << " ("
      << published - parameters << ", " << published - parameters - scales << ")";
}

TEST(Parameters, EveryRowIsMetExactlyOrMissedByWhatIsKnown) {
  int checked = 0;
  int absent = 0;
  for (const auto& row :
       read_csv(std::string(OOMCAST_TEST_DATA) + "/models/parameter_counts.csv")) {
    const std::string path = config_path(row.at("config"));
    if (path.empty()) {
      ++absent;
      continue;
    }
    const std::string& model = row.at("model");
    const ModelSpec spec = read_model_config(path);
    if (!row.at("published").empty() && !other_units().contains(model)) {
      expect_published(model, spec, std::stoll(row.at("published")));
    } else if (!row.at("text").empty()) {
      EXPECT_EQ(parameter_count(spec), std::stoll(row.at("text"))) << model;
    }
    ++checked;
  }
  EXPECT_GE(checked, 6) << "the carried files at least";
  std::cout << checked << " rows checked, " << absent << " without their file\n";
}

TEST(Parameters, PartsOfOneModelAddUp) {
  const ModelSpec spec = read_model_config(config_path("google__gemma-4-E2B-it.json"));
  EXPECT_EQ(parameter_count(spec, Component::kVision), 168'544'256);
  EXPECT_EQ(parameter_count(spec, Component::kAudio), 307'183'904);
  const Bytes text = weights_on_rank(spec, {}).weights;
  EXPECT_EQ(weights_on_rank(spec, {.towers = true}).weights - text,
            Bytes{2 * (168'544'256 + 307'183'904)});
  // 20 of 35 layers use another's keys and values: 16 with a window, 4 global.
  const std::int64_t unused = 16 * (2 * 256 * 1536 + 256) + 4 * (2 * 512 * 1536 + 512);
  EXPECT_EQ(text - weights_on_rank(spec, {.unused_kv = false}).weights, Bytes{2 * unused});
}

TEST(Parameters, DraftLayersLoadOnlyWhenAskedForAndShareEmbeddingAndHead) {
  const ModelSpec spec = read_model_config(config_path("deepseek-ai__DeepSeek-V4-Flash.json"));
  constexpr std::int64_t kCopies = 2LL * 129280 * 4096;
  EXPECT_EQ(parameter_count(spec, Component::kMtp), 6'610'048'891 + kCopies);
  const RankWeights without = weights_on_rank(spec, {});
  const RankWeights with = weights_on_rank(spec, {.draft = true});
  EXPECT_GT(with.weights, without.weights);
  for (const TensorBytes& tensor : with.tensors) {
    EXPECT_FALSE(tensor.layer >= spec.layer_count() && tensor.name == "embed_tokens.weight");
  }
  EXPECT_EQ(weights_on_rank(spec, {.pp = 2, .pp_rank = 0, .draft = true}).weights,
            weights_on_rank(spec, {.pp = 2, .pp_rank = 0}).weights)
      << "drafts live on the last stage";
}

}  // namespace
}  // namespace oomcast::models
