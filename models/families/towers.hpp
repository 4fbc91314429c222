// Encoders of images and sound, with the projectors into the language model.
//
// Shapes: the published checkpoints' classes (transformers modeling_*), as SGLang 0.5.23 lists
// their tensors once loaded. Ranks divide heads and feed-forward where that goes without remainder.
#pragma once

#include "models/families/family.hpp"

namespace oomcast::models {

// Appends the encoders that the file describes to spec.towers. An encoder whose parts are not
// known is noted in spec.notes.
void add_towers(const Config& config, ModelSpec& spec);

// ---- For the encoders' own files ---------------------------------------------------------------

// Writes one tower, group by group.
class TowerWriter {
 public:
  explicit TowerWriter(Component component) { tower_.component = component; }

  // What follows exists `count` times, one after the other.
  void begin(std::int64_t count) { tower_.groups.push_back({count, {}}); }

  void linear(std::string_view weight, std::string_view bias, std::vector<Extent> rows,
              Extent columns);
  void vector(std::string_view name, std::int64_t size);
  void table(std::string_view name, std::int64_t rows, std::int64_t columns);
  // An empty `bias`: RMSNorm.
  void norm(std::string_view weight, std::string_view bias, std::int64_t size);
  // `count` scalars that the module registers as buffers, each a tensor of its own.
  void scalars(std::string_view name, std::int64_t count);

  Tower take() { return std::move(tower_); }

 private:
  void push(TensorSpec tensor);

  Tower tower_;
};

// Layers of a plain transformer encoder.
struct EncoderLayers {
  std::int64_t count = 1;
  std::int64_t width = 1;
  std::int64_t heads = 1;
  std::int64_t inner = 0;  // heads x head width; 0: width
  std::int64_t ffn = 1;
  bool gated = false;
  bool norm_bias = true;
  bool qkv_bias = true;
  bool key_bias = true;  // false: the key's part of the bias is not stored (Whisper)
  bool output_bias = true;
  bool ffn_bias = true;
  int norms = 2;
  bool qk_norm = false;      // one vector of the head's width for queries, one for keys
  std::int64_t gates = 0;    // scalars that weigh attention and feed-forward
  std::int64_t scalars = 0;  // buffers
};
void write_layers(TowerWriter& tower, const EncoderLayers& layers);

// width, heads, layers, feed-forward under the names that encoders use; a missing one is the given
// default, listed as assumed.
struct EncoderDefaults {
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t layers = 0;
  std::int64_t ffn = 0;
};
EncoderLayers read_layers(const Config& tower, const EncoderDefaults& defaults);

using TowerBuilder = void (*)(const Config& config, const Config& tower, ModelSpec& spec);
void add_qwen2_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_qwen25_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_qwen3_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_glm4v_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_gemma3_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_gemma4_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_pixtral(const Config& config, const Config& tower, ModelSpec& spec);
void add_llama4_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_llava_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_mllama_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_moonvit(const Config& config, const Config& tower, ModelSpec& spec);
void add_kimi_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_muse_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_minimax_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_deepseek_vl2_vision(const Config& config, const Config& tower, ModelSpec& spec);
void add_gemma4_audio(const Config& config, const Config& tower, ModelSpec& spec);
void add_qwen25_audio(const Config& config, const Config& tower, ModelSpec& spec);
void add_qwen3_audio(const Config& config, const Config& tower, ModelSpec& spec);

}  // namespace oomcast::models
