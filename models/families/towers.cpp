#include "models/families/towers.hpp"

#include <array>

namespace oomcast::models {

void TowerWriter::push(TensorSpec tensor) {
  tensor.component = tower_.component;
  OOMCAST_CHECK(!tower_.groups.empty(), "{} before the first group", tensor.name);
  tower_.groups.back().tensors.push_back(std::move(tensor));
}

void TowerWriter::linear(std::string_view weight, std::string_view bias, std::vector<Extent> rows,
                         Extent columns) {
  TensorSpec tensor;
  tensor.name = weight;
  tensor.rows = rows;
  tensor.columns = columns;
  push(std::move(tensor));
  if (!bias.empty()) {
    TensorSpec vector;
    vector.name = bias;
    vector.rows = std::move(rows);
    push(std::move(vector));
  }
}

void TowerWriter::vector(std::string_view name, std::int64_t size) { table(name, size, 1); }

void TowerWriter::table(std::string_view name, std::int64_t rows, std::int64_t columns) {
  linear(name, {}, {{.size = rows}}, {.size = columns});
}

void TowerWriter::norm(std::string_view weight, std::string_view bias, std::int64_t size) {
  vector(weight, size);
  if (!bias.empty()) {
    vector(bias, size);
  }
}

void TowerWriter::scalars(std::string_view name, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    TensorSpec scalar;
    scalar.name = name;
    scalar.rows = {{.size = 1}};
    scalar.leaf = WeightLeaf::kBuffers;
    scalar.parameter = false;
    push(std::move(scalar));
  }
}

void write_layers(TowerWriter& tower, const EncoderLayers& layers) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kNorms = {
      {{"layers.norm1.weight", "layers.norm1.bias"},
       {"layers.norm2.weight", "layers.norm2.bias"},
       {"layers.norm3.weight", "layers.norm3.bias"},
       {"layers.norm4.weight", "layers.norm4.bias"}}};
  tower.begin(layers.count);
  for (int i = 0; i < layers.norms; ++i) {
    const auto& [weight, bias] = kNorms.at(static_cast<std::size_t>(i));
    tower.norm(weight, layers.norm_bias ? bias : "", layers.width);
  }
  const std::int64_t inner = layers.inner > 0 ? layers.inner : layers.width;
  const std::int64_t head = inner / layers.heads;
  const Extent heads{layers.heads, head, Split::kWhereItDivides};
  const Extent ffn{layers.ffn, 1, Split::kWhereItDivides};
  const Extent width{.size = layers.width};
  tower.linear("layers.attn.qkv.weight", {}, {heads, heads, heads}, width);
  if (layers.qkv_bias) {
    Extent keys = heads;
    keys.stored = layers.key_bias;
    tower.linear("layers.attn.qkv.bias", {}, {heads, keys, heads}, {});
  }
  tower.linear("layers.attn.proj.weight", {}, {width}, heads);
  if (layers.output_bias) {
    tower.vector("layers.attn.proj.bias", layers.width);
  }
  if (layers.qk_norm) {
    tower.vector("layers.attn.q_norm.weight", head);
    tower.vector("layers.attn.k_norm.weight", head);
  }
  tower.linear("layers.mlp.up.weight", layers.ffn_bias ? "layers.mlp.up.bias" : "",
               std::vector<Extent>(layers.gated ? 2 : 1, ffn), width);
  tower.linear("layers.mlp.down.weight", {}, {width}, ffn);
  if (layers.ffn_bias) {
    tower.vector("layers.mlp.down.bias", layers.width);
  }
  for (std::int64_t i = 0; i < layers.gates; ++i) {
    tower.vector("layers.gate", 1);
  }
  tower.scalars("layers.scalar", layers.scalars);
}

EncoderLayers read_layers(const Config& tower, const EncoderDefaults& defaults) {
  EncoderLayers out;
  out.width = tower.required_or({"embed_dim", "vt_hidden_size", "hidden_size", "width", "d_model"},
                                defaults.width, {1, kMostHidden});
  out.heads = tower.required_or({"num_heads", "vt_num_attention_heads", "num_attention_heads",
                                 "attention_heads", "encoder_attention_heads"},
                                defaults.heads, {1, kMostHeads});
  out.count = tower.required_or(
      {"depth", "vt_num_hidden_layers", "num_hidden_layers", "layers", "encoder_layers"},
      defaults.layers, {1, kMostLayers});
  out.ffn = tower.required_or({"intermediate_size", "vt_intermediate_size", "encoder_ffn_dim"},
                              defaults.ffn, {1, kMostWidth});
  if (out.width % out.heads != 0) {
    tower.complain(tower.has("num_heads") ? "num_heads" : "num_attention_heads",
                   fmt::format("a divisor of the width {}", out.width));
    out.heads = 1;
  }
  return out;
}

namespace {

struct TowerKind {
  std::string_view architecture;
  TowerBuilder vision;
  TowerBuilder audio;
};

constexpr auto kTowers = std::to_array<TowerKind>({
    {"DeepseekVLV2ForCausalLM", add_deepseek_vl2_vision, nullptr},
    {"Gemma3ForConditionalGeneration", add_gemma3_vision, nullptr},
    {"Gemma4ForConditionalGeneration", add_gemma4_vision, add_gemma4_audio},
    {"Glm4vForConditionalGeneration", add_glm4v_vision, nullptr},
    {"KimiK25ForConditionalGeneration", add_moonvit, nullptr},
    {"KimiK3ForConditionalGeneration", add_kimi_vision, nullptr},
    {"KimiVLForConditionalGeneration", add_moonvit, nullptr},
    {"Llama4ForConditionalGeneration", add_llama4_vision, nullptr},
    {"LlavaForConditionalGeneration", add_llava_vision, nullptr},
    {"LlavaNextForConditionalGeneration", add_llava_vision, nullptr},
    {"LocateAnythingForConditionalGeneration", add_moonvit, nullptr},
    {"MiniMaxM3SparseForConditionalGeneration", add_minimax_vision, nullptr},
    {"Mistral3ForConditionalGeneration", add_pixtral, nullptr},
    {"MllamaForConditionalGeneration", add_mllama_vision, nullptr},
    {"MuseGlimmerForConditionalGeneration", add_muse_vision, nullptr},
    {"Qwen2VLForConditionalGeneration", add_qwen2_vision, nullptr},
    {"Qwen2_5OmniForConditionalGeneration", add_qwen25_vision, add_qwen25_audio},
    {"Qwen2_5OmniModel", add_qwen25_vision, add_qwen25_audio},
    {"Qwen2_5_VLForConditionalGeneration", add_qwen25_vision, nullptr},
    {"Qwen3OmniMoeForConditionalGeneration", add_qwen3_vision, add_qwen3_audio},
    {"Qwen3VLForConditionalGeneration", add_qwen3_vision, nullptr},
    {"Qwen3VLMoeForConditionalGeneration", add_qwen3_vision, nullptr},
    {"Qwen3_5ForConditionalGeneration", add_qwen3_vision, nullptr},
    {"Qwen3_5MoeForConditionalGeneration", add_qwen3_vision, nullptr},
});

void add_tower(const Config& config, std::string_view key, TowerBuilder build, ModelSpec& spec) {
  const auto section = config.section(key);
  if (section && build != nullptr) {
    build(config, *section, spec);
  } else if (section) {
    spec.notes.push_back(
        fmt::format("the encoder of {} is not described here and not counted", key));
  }
}

}  // namespace

void add_towers(const Config& config, ModelSpec& spec) {
  const auto kind = std::find_if(kTowers.begin(), kTowers.end(), [&](const TowerKind& entry) {
    return entry.architecture == spec.architecture;
  });
  if (kind == kTowers.end()) {
    if (spec.family != "gemma4_unified") {  // its embedders are part of the model
      add_tower(config, "vision_config", nullptr, spec);
      add_tower(config, "audio_config", nullptr, spec);
    }
    return;
  }
  if (!config.section("vision_config") && kind->vision == add_llama4_vision) {
    // Every published Llama 4 has the same encoder; some copies of the file leave it out.
    static const Json kNothing = Json::object();
    add_llama4_vision(config, config.part(kNothing, "vision_config"), spec);
    return;
  }
  add_tower(config, "vision_config", kind->vision, spec);
  add_tower(config, "audio_config", kind->audio, spec);
}

}  // namespace oomcast::models
