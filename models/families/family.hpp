// What a family's builder works with: typed access to the keys of a config.json, and pieces that
// most decoders are made of.
//
// A builder reads keys through Config and appends to ModelSpec: layer kinds with their tensors in
// the order in which the engine's model class creates them, the tensors before and after the
// layers, and rope tables. It never throws for bad values; Config gathers the problems.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/spec.hpp"
#include "sim/core/json.hpp"

namespace oomcast::models {

// Bounds that keep every product of sizes inside 64 bits.
inline constexpr std::int64_t kMostHidden = std::int64_t{1} << 20;
inline constexpr std::int64_t kMostWidth = std::int64_t{1} << 22;
inline constexpr std::int64_t kMostLayers = 1024;
inline constexpr std::int64_t kMostHeads = std::int64_t{1} << 14;
inline constexpr std::int64_t kMostHeadDim = std::int64_t{1} << 14;
inline constexpr std::int64_t kMostVocabulary = std::int64_t{1} << 26;
inline constexpr std::int64_t kMostExperts = std::int64_t{1} << 16;
inline constexpr std::int64_t kMostPosition = std::int64_t{1} << 30;
inline constexpr std::int64_t kMostParameters = std::int64_t{1} << 50;

struct Range {
  std::int64_t low = 1;
  std::int64_t high = 1;
};

using Keys = std::initializer_list<std::string_view>;

// The language model's part of a config.json, with the whole file as fallback for keys that some
// publishers leave on the outer level.
class Config {
 public:
  Config(const Json& whole, const Json& text, std::string source, std::string text_path,
         ModelSpec& spec, Problems& problems);

  // First of `keys` that is there (text level first). Absent: a problem; returns range.low, so that
  // reading goes on and finds everything else that is wrong.
  [[nodiscard]] std::int64_t required(Keys keys, Range range) const;
  // As required() if `fallback` is 0, else as class_default().
  [[nodiscard]] std::int64_t required_or(Keys keys, std::int64_t fallback, Range range) const;
  [[nodiscard]] std::optional<std::int64_t> maybe(Keys keys, Range range) const;
  // Absent: `fallback`, listed as an assumption that the configuration class defines.
  [[nodiscard]] std::int64_t class_default(Keys keys, std::int64_t fallback, Range range) const;
  [[nodiscard]] bool class_default(std::string_view key, bool fallback) const;
  // Absent: `fallback` without a word, for keys whose absence means the plain thing.
  [[nodiscard]] std::int64_t plain(Keys keys, std::int64_t fallback, Range range) const;
  [[nodiscard]] bool flag(std::string_view key, bool fallback = false) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const;
  [[nodiscard]] std::optional<std::vector<std::string>> texts(std::string_view key) const;
  [[nodiscard]] bool has(std::string_view key) const;
  // The value wherever it is, or null.
  [[nodiscard]] const Json* find(std::string_view key) const;
  // A list of integers in `range`; nullopt when absent or wrong (then a problem).
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view key,
                                                                  Range range) const;

  // An object of the file (its inner or outer level, or that of thinker_config) as a level of its
  // own; nullopt when absent or empty.
  [[nodiscard]] std::optional<Config> section(std::string_view key) const;
  // `json` as such a level; it must outlive the result.
  [[nodiscard]] Config part(const Json& json, std::string path) const;

  void assume(std::string key, std::string value, std::string reason) const;
  void complain(std::string_view key, std::string expected, std::string hint = {}) const;
  [[nodiscard]] const std::string& source() const { return text_.source(); }
  [[nodiscard]] Problems& problems() const { return text_.problems(); }
  [[nodiscard]] const JsonView& text_level() const { return text_; }
  // The language model is one part of a larger model's file. Those files leave out what equals the
  // configuration class's default.
  [[nodiscard]] bool nested() const { return &text_.raw() != &whole_.raw(); }

 private:
  [[nodiscard]] const JsonView& level_of(std::string_view key) const;
  [[nodiscard]] std::string named(const std::string& key) const;

  JsonView text_;
  JsonView whole_;
  ModelSpec* spec_;
};

// The sizes that every decoder has.
struct Sizes {
  std::int64_t hidden = 1;
  int layers = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t width = 0;
  std::int64_t vocabulary = 1;
};

// How a family's keys depart from the common rules.
struct SizeRules {
  bool read_width = true;
  bool read_kv_heads = true;
  std::optional<std::int64_t> head_dim;  // class default; else hidden / heads
  // Class defaults for sizes that a family's published files do leave out (Gemma 3, LLaVA's nested
  // Llama); 0: required.
  std::int64_t default_hidden = 0;
  std::int64_t default_layers = 0;
  std::int64_t default_width = 0;
  std::int64_t default_heads = 0;
  std::int64_t default_kv_heads = 0;  // 0: as many as heads
  std::int64_t default_vocabulary = 0;
  bool halve_width = false;  // intermediate_size counts gate and up together (Qwen 1)
};

// Reads sizes, and sets hidden, vocabulary and tie_word_embeddings of the spec. Contradictions
// (heads that kv_heads do not divide, hidden that heads do not divide) become problems.
Sizes read_sizes(const Config& config, ModelSpec& spec, bool tie_default,
                 const SizeRules& rules = {});

// layer_types as published, one entry a layer; empty when absent. A wrong length is a problem.
std::vector<std::string> read_layer_types(const Config& config, int layers);

// ---- Rope --------------------------------------------------------------------------------------

struct RopeRules {
  std::int64_t head_dim = 0;
  double theta_default = 10000.0;
  std::optional<std::int64_t> rotary_dim = {};  // given in elements instead of as a share
  bool fp32_table = false;
  bool deepseek_yarn = false;    // the type "yarn" is DeepSeek's
  double partial_default = 1.0;  // share of a head that is rotated
  std::int64_t default_max_position = 2048;
  std::string theta_key = "rope_theta";
  bool theta_from_key = false;  // theta_key even where rope_parameters give a theta
  std::string layer_type = {};  // which part of a rope_parameters dict by layer type
  bool scaled = true;           // false: ignore rope_scaling (local layers)
};
// Reads rope_scaling / rope_parameters / rope_theta / partial_rotary_factor; returns the number of
// the table in spec.ropes (equal tables share one).
int add_rope(const Config& config, ModelSpec& spec, const RopeRules& rules);
int add_rope(ModelSpec& spec, const RopeSpec& rope);

// ---- Tensors -----------------------------------------------------------------------------------

struct Linear {
  std::string_view weight;
  std::string_view bias;  // used only with has_bias
  std::vector<Extent> rows;
  Extent columns;
  bool has_bias = false;
  bool quantisable = true;
};
// Appends the weight and, if asked for, the bias. A bias has the rows' split; of a row-parallel
// linear every rank holds the whole bias.
void add_linear(std::vector<TensorSpec>& tensors, const Linear& linear);
void add_vector(std::vector<TensorSpec>& tensors, std::string_view name, std::int64_t size,
                Element element = Element::kModel);
// weight, and bias for LayerNorm.
void add_norm(std::vector<TensorSpec>& tensors, std::string_view weight, std::int64_t size,
              std::string_view bias = {});

enum class QkNorm : std::uint8_t {
  kNone,
  kPerHead,    // one vector of head_dim each, shared by the heads
  kFullWidth,  // heads x head_dim and kv_heads x head_dim
};

struct AttentionStyle {
  bool qkv_bias = false;
  bool output_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool query_gate = false;  // q_proj has a second half that gates the output
  // A projection of its own that gates the output, one value a head or one a channel.
  std::string_view gate = {};
  bool gate_per_head = false;
  bool values_are_keys = false;    // the checkpoint has no v_proj
  bool output_quantisable = true;  // false: o_proj stays in 16 bits in quantised checkpoints
  std::string_view output = "self_attn.o_proj.weight";
  bool norms_first = false;  // creation order: q/k norms before the rope table
};
// q/k/v fused, output, rope table, the engine's four scale scalars, q and k norms.
void add_attention(const ModelSpec& spec, LayerSpec& layer, const AttentionSpec& attention,
                   const AttentionStyle& style = {});
void add_rope_table(std::vector<TensorSpec>& tensors, const ModelSpec& spec, int rope);
void add_attention_scales(std::vector<TensorSpec>& tensors);

// gate and up fused, down (kGated); up, down (kPlain).
void add_ffn(const ModelSpec& spec, LayerSpec& layer, FfnKind kind, std::int64_t width,
             bool bias = false);

// Embedding before the layers; final norm and head after. A tied head shares the embedding.
struct HeadStyle {
  bool norm_bias = false;
  bool head_bias = false;
  bool embedding_scale = false;  // Gemma's normalizer scalar
  bool final_norm = true;
};
void add_embedding_and_head(ModelSpec& spec, const HeadStyle& style = {});

// ---- Draft layers ------------------------------------------------------------------------------

// How many the file names.
std::int64_t read_drafts(const Config& config);
// Norms of embedding and hidden state and the projection of both, which most drafts begin with.
void start_draft(const ModelSpec& spec, LayerSpec& draft);
// What a checkpoint repeats for its draft; engines share the target's.
struct DraftCopies {
  bool embedding = false;
  bool head = false;
};
// Final norm and copies; `count` layers like `draft` become the model's draft layers.
void finish_drafts(ModelSpec& spec, LayerSpec draft, std::int64_t count, const DraftCopies& copies);

// Appends `layers` layers. variant(i) says which layers are alike; make(v) builds one of each.
template <typename VariantOf, typename Make>
void add_layers(ModelSpec& spec, int layers, VariantOf variant_of, Make make) {
  std::vector<std::pair<int, std::uint16_t>> known;  // few, so a search is cheapest
  for (int i = 0; i < layers; ++i) {
    const int variant = variant_of(i);
    auto at = std::find_if(known.begin(), known.end(),
                           [variant](const auto& entry) { return entry.first == variant; });
    if (at == known.end()) {
      spec.layer_kinds.push_back(make(variant));
      known.emplace_back(variant, static_cast<std::uint16_t>(spec.layer_kinds.size() - 1));
      at = std::prev(known.end());
    }
    spec.layer_kind.push_back(at->second);
  }
}

// ---- Builders ----------------------------------------------------------------------------------

using Builder = void (*)(const Config&, ModelSpec&);
struct Family {
  std::string_view architecture;
  std::string_view name;
  Builder build;
};
// Every architecture with a builder, sorted by architecture.
const std::vector<Family>& families();
// Architecture that a model_type stands for when a file names none; empty if unknown.
std::string_view architecture_of_model_type(std::string_view model_type);

}  // namespace oomcast::models
