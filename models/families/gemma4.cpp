// Gemma 4 and Gemma 3n: layers with a window and global ones differ in head width and KV heads,
// the last layers use the KV of earlier ones, and each layer may get its own part of a second,
// large embedding ("per-layer embeddings").
#include "models/families/builders.hpp"

namespace oomcast::models {
namespace {

// Published files give a width for each layer; engines take them as equal.
std::int64_t read_one_width(const Config& config) {
  const Json* width = config.find("intermediate_size");
  if (width == nullptr || !width->is_array()) {
    return config.required({"intermediate_size"}, {1, kMostWidth});
  }
  const auto list = config.integers("intermediate_size", {1, kMostWidth});
  if (!list || list->empty() ||
      std::count(list->begin(), list->end(), list->front()) !=
          static_cast<std::ptrdiff_t>(list->size())) {
    config.complain("intermediate_size", "one width, or the same for every layer");
    return 1;
  }
  return list->front();
}

struct Gemma4Sizes {
  Sizes common;
  std::int64_t global_head_dim = 1;
  std::int64_t global_kv_heads = 1;
  bool keys_are_values = false;  // in global layers
  std::int64_t shared_kv_layers = 0;
  std::int64_t shared_width = 1;  // feed-forward of layers that use another's KV
  std::int64_t per_layer_width = 0;
  std::int64_t per_layer_vocabulary = 1;
  std::vector<bool> sliding;
  Tokens window;
  int sliding_rope = -1;
  int global_rope = -1;

  [[nodiscard]] int own_kv_layers() const {
    return common.layers - static_cast<int>(shared_kv_layers);
  }
};

void read_shared_layers(const Config& config, Gemma4Sizes& sizes) {
  sizes.shared_kv_layers = config.plain({"num_kv_shared_layers"}, 0, {0, kMostLayers});
  const auto own_end = sizes.sliding.begin() + std::max(sizes.own_kv_layers(), 0);
  for (const bool kind : {false, true}) {
    const bool used = std::find(own_end, sizes.sliding.end(), kind) != sizes.sliding.end();
    if (sizes.own_kv_layers() < 1 ||
        (used && std::find(sizes.sliding.begin(), own_end, kind) == own_end)) {
      config.complain("num_kv_shared_layers",
                      "a number that leaves an earlier layer of each kind to take the KV from");
      sizes.shared_kv_layers = 0;
      return;
    }
  }
}

void read_per_layer_embedding(const Config& config, const ModelSpec& spec, Gemma4Sizes& sizes) {
  sizes.per_layer_width = config.plain({"hidden_size_per_layer_input"}, 0, {0, kMostHidden});
  sizes.per_layer_vocabulary =
      config.plain({"vocab_size_per_layer_input"}, spec.vocabulary, {1, kMostVocabulary});
}

// The last layer of that kind that has KV of its own.
int kv_source(const Gemma4Sizes& sizes, bool sliding) {
  int source = sizes.own_kv_layers() - 1;
  while (source > 0 && sizes.sliding[static_cast<std::size_t>(source)] != sliding) {
    --source;
  }
  return source;
}

void take_kv_from(LayerSpec& layer, int source) {
  layer.attention.kv_from_layer = source;
  for (TensorSpec& tensor : layer.tensors) {
    if (tensor.name == "self_attn.qkv_proj.weight") {
      for (std::size_t part = 1; part < tensor.rows.size(); ++part) {
        tensor.rows[part].unused = true;
      }
    } else if (tensor.name == "self_attn.k_norm.weight" ||
               tensor.name == "self_attn.v_norm.weight") {
      tensor.rows.front().unused = true;
    }
  }
}

AttentionSpec attention_of(const Gemma4Sizes& sizes, bool sliding) {
  AttentionSpec attention;
  attention.kind = sliding ? AttentionKind::kSlidingWindow : AttentionKind::kFull;
  attention.heads = sizes.common.heads;
  attention.kv_heads = sliding ? sizes.common.kv_heads : sizes.global_kv_heads;
  attention.head_dim = sliding ? sizes.common.head_dim : sizes.global_head_dim;
  attention.v_head_dim = attention.head_dim;
  attention.window = sliding ? sizes.window : Tokens{0};
  attention.rope = sliding ? sizes.sliding_rope : sizes.global_rope;
  return attention;
}

// Variants of a layer: its kind, and whether it has KV of its own.
constexpr int kSliding = 1;
constexpr int kSharesKv = 2;

int variant_of(const Gemma4Sizes& sizes, int layer) {
  return (sizes.sliding[static_cast<std::size_t>(layer)] ? kSliding : 0) +
         (layer >= sizes.own_kv_layers() ? kSharesKv : 0);
}

void add_four_norms(const ModelSpec& spec, std::vector<TensorSpec>& tensors) {
  for (const std::string_view name :
       {"input_layernorm.weight", "post_attention_layernorm.weight",
        "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"}) {
    add_norm(tensors, name, spec.hidden);
  }
}

void add_replicated(std::vector<TensorSpec>& tensors, std::string_view name, std::int64_t rows,
                    std::int64_t columns, bool quantisable = true) {
  add_linear(tensors, {.weight = name,
                       .bias = {},
                       .rows = {{.size = rows}},
                       .columns = {.size = columns},
                       .quantisable = quantisable});
}

// A norm without weights still keeps a vector of ones.
void add_unweighted_norm(std::vector<TensorSpec>& tensors, std::string_view name,
                         std::int64_t size) {
  add_vector(tensors, name, size);
  tensors.back().leaf = WeightLeaf::kBuffers;
  tensors.back().parameter = false;
}

// The tables and projections behind per-layer embeddings.
void add_per_layer_embedding(const Config& config, ModelSpec& spec, const Gemma4Sizes& sizes) {
  const std::int64_t width = sizes.per_layer_width * sizes.common.layers;
  if (width > kMostWidth) {
    config.complain("hidden_size_per_layer_input",
                    "a width that all layers together keep below 2^22");
    return;
  }
  const std::size_t first = spec.before.size();
  TensorSpec table;
  table.name = "embed_tokens_per_layer.weight";
  table.rows = {{sizes.per_layer_vocabulary, 1, Split::kVocabulary}};
  table.columns = {.size = width};
  spec.before.push_back(table);
  add_linear(spec.before, {.weight = "per_layer_model_projection.weight",
                           .bias = {},
                           .rows = {{width, 1, Split::kEven}},
                           .columns = {.size = spec.hidden},
                           .quantisable = false});
  add_norm(spec.before, "per_layer_projection_norm.weight", sizes.per_layer_width);
  for (const std::string_view name :
       {"embed_scale_per_layer", "per_layer_input_scale", "per_layer_projection_scale"}) {
    add_vector(spec.before, name, 1);
    spec.before.back().leaf = WeightLeaf::kBuffers;
    spec.before.back().parameter = false;
  }
  TensorSpec staged;
  staged.name = "per_layer_embeddings";
  staged.rows = {{1, width, Split::kStepTokens}};
  staged.leaf = WeightLeaf::kBuffers;
  staged.parameter = false;
  spec.before.push_back(staged);
  for (std::size_t i = first; i < spec.before.size(); ++i) {
    spec.before[i].place = Place::kEveryStage;
  }
}

void add_per_layer_input(const ModelSpec& spec, std::vector<TensorSpec>& tensors,
                         std::int64_t width) {
  add_replicated(tensors, "per_layer_input_gate.weight", width, spec.hidden);
  add_replicated(tensors, "per_layer_projection.weight", spec.hidden, width);
  add_norm(tensors, "post_per_layer_input_norm.weight", spec.hidden);
}

Gemma4Sizes read_gemma4(const Config& config, ModelSpec& spec) {
  Gemma4Sizes sizes;
  SizeRules rules;
  rules.head_dim = 256;
  sizes.common = read_sizes(config, spec, true, rules);
  const Range head_dims{1, kMostHeadDim};
  sizes.global_head_dim = config.class_default({"global_head_dim"}, 512, head_dims);
  sizes.keys_are_values = config.flag("attention_k_eq_v");
  sizes.global_kv_heads =
      sizes.keys_are_values
          ? config.plain({"num_global_key_value_heads"}, sizes.common.kv_heads, {1, kMostHeads})
          : sizes.common.kv_heads;
  DecoderStyle windows;
  windows.full_every = 6;
  const Windows read = read_windows(config, sizes.common.layers, windows);
  sizes.sliding = read.sliding;
  sizes.window = read.window;
  read_shared_layers(config, sizes);
  read_per_layer_embedding(config, spec, sizes);
  sizes.shared_width = sizes.common.width * (config.flag("use_double_wide_mlp") ? 2 : 1);
  // The global rope rotates whole heads; its partial factor only shapes the frequencies.
  RopeRules rope;
  rope.layer_type = "sliding_attention";
  rope.head_dim = sizes.common.head_dim;
  rope.rotary_dim = sizes.common.head_dim;
  rope.default_max_position = 131072;
  sizes.sliding_rope = add_rope(config, spec, rope);
  rope.layer_type = "full_attention";
  rope.theta_default = 1e6;
  rope.head_dim = sizes.global_head_dim;
  rope.rotary_dim = sizes.global_head_dim;
  sizes.global_rope = add_rope(config, spec, rope);
  return sizes;
}

std::optional<MoeStyle> read_gemma4_moe(const Config& config) {
  if (!config.flag("enable_moe_block")) {
    return std::nullopt;
  }
  MoeStyle moe;
  moe.experts = read_experts(config);
  moe.experts_per_token = read_experts_per_token(config, moe.experts);
  moe.expert_width =
      config.required({"moe_intermediate_size", "expert_intermediate_size"}, {1, kMostWidth});
  return moe;
}

// Beside the dense feed-forward: a router with its own scale, experts with one each.
void add_parallel_experts(const ModelSpec& spec, LayerSpec& layer, const MoeStyle& moe) {
  std::vector<TensorSpec>& tensors = layer.tensors;
  const std::int64_t dense_width = layer.ffn.width;
  add_vector(tensors, "router.scale", spec.hidden);
  add_unweighted_norm(tensors, "router.norm.weight", spec.hidden);
  add_unweighted_norm(tensors, "router.root_size", 1);
  add_replicated(tensors, "router.proj.weight", moe.experts, spec.hidden, false);
  add_vector(tensors, "router.per_expert_scale", moe.experts);
  const std::size_t first_expert = tensors.size();
  add_routed_experts(spec, layer, moe);
  // Beside `mlp`, not inside it: checkpoints quantise the experts and leave `mlp` in 16 bits.
  for (std::size_t i = first_expert; i < tensors.size(); ++i) {
    tensors[i].name.remove_prefix(std::string_view("mlp.").size());
  }
  layer.ffn.width = dense_width;
  for (const std::string_view name :
       {"post_feedforward_layernorm_1.weight", "post_feedforward_layernorm_2.weight",
        "pre_feedforward_layernorm_2.weight"}) {
    add_norm(tensors, name, spec.hidden);
  }
}

// Gemma 4 Unified has no towers: patches of pixels and frames of sound are projected into the text
// model's space. These few tensors are part of the model, whatever modalities are switched off
// (transformers Gemma4UnifiedVisionConfig, Gemma4UnifiedAudioConfig).
void add_embedder(ModelSpec& spec, Component component, const std::vector<TensorSpec>& tensors) {
  for (TensorSpec tensor : tensors) {
    tensor.component = component;
    tensor.place = Place::kEveryStage;
    spec.before.push_back(std::move(tensor));
  }
}

void add_unified_embedders(const Config& config, ModelSpec& spec) {
  if (const auto vision = config.section("vision_config")) {
    const std::int64_t width = vision->class_default({"mm_embed_dim"}, 3840, {1, kMostHidden});
    const std::int64_t positions =
        vision->class_default({"mm_posemb_size"}, 1120, {1, kMostPosition});
    const std::int64_t side = vision->class_default({"patch_size"}, 16, {1, 1024}) *
                              vision->class_default({"pooling_kernel_size"}, 3, {1, 64});
    const std::int64_t pixels = 3 * side * side;
    std::vector<TensorSpec> tensors;
    add_norm(tensors, "vision_embedder.patch_ln1.weight", pixels, "vision_embedder.patch_ln1.bias");
    add_replicated(tensors, "vision_embedder.patch_dense.weight", width, pixels, false);
    add_vector(tensors, "vision_embedder.patch_dense.bias", width);
    add_norm(tensors, "vision_embedder.patch_ln2.weight", width, "vision_embedder.patch_ln2.bias");
    add_replicated(tensors, "vision_embedder.pos_embedding", 2 * positions, width, false);
    add_norm(tensors, "vision_embedder.pos_norm.weight", width, "vision_embedder.pos_norm.bias");
    add_unweighted_norm(tensors, "embed_vision.embedding_pre_projection_norm.weight", width);
    add_replicated(tensors, "embed_vision.embedding_projection.weight", spec.hidden, width, false);
    add_embedder(spec, Component::kVision, tensors);
  }
  if (const auto audio = config.section("audio_config")) {
    const std::int64_t width = audio->class_default({"audio_embed_dim"}, 640, {1, kMostHidden});
    std::vector<TensorSpec> tensors;
    add_unweighted_norm(tensors, "embed_audio.embedding_pre_projection_norm.weight", width);
    add_replicated(tensors, "embed_audio.embedding_projection.weight", spec.hidden, width, false);
    add_embedder(spec, Component::kAudio, tensors);
  }
}

}  // namespace

void build_gemma4(const Config& config, ModelSpec& spec) {
  const Gemma4Sizes sizes = read_gemma4(config, spec);
  const std::optional<MoeStyle> moe = read_gemma4_moe(config);
  AttentionStyle style;
  style.qkv_bias = config.flag("attention_bias");
  style.output_bias = style.qkv_bias;
  style.qk_norm = QkNorm::kPerHead;
  style.norms_first = true;
  const auto make = [&](int variant) {
    const bool sliding = (variant & kSliding) != 0;
    const bool shares = (variant & kSharesKv) != 0;
    LayerSpec layer;
    AttentionStyle own = style;
    own.values_are_keys = sizes.keys_are_values && !sliding;
    add_attention(spec, layer, attention_of(sizes, sliding), own);
    add_unweighted_norm(layer.tensors, "self_attn.v_norm.weight", layer.attention.head_dim);
    if (shares) {
      take_kv_from(layer, kv_source(sizes, sliding));
    }
    add_ffn(spec, layer, FfnKind::kGated, shares ? sizes.shared_width : sizes.common.width);
    add_four_norms(spec, layer.tensors);
    if (moe) {
      add_parallel_experts(spec, layer, *moe);
    }
    if (sizes.per_layer_width > 0) {
      add_per_layer_input(spec, layer.tensors, sizes.per_layer_width);
    }
    add_vector(layer.tensors, "layer_scalar", 1);
    return layer;
  };
  add_layers(
      spec, sizes.common.layers, [&](int i) { return variant_of(sizes, i); }, make);
  if (spec.family == "gemma4_unified") {
    add_unified_embedders(config, spec);
  }
  add_embedding_and_head(spec, {.embedding_scale = true});
  if (sizes.per_layer_width > 0) {
    add_per_layer_embedding(config, spec, sizes);
  }
}

// Gemma 3n (transformers modular_gemma3n): four streams that predict and correct each other
// (AltUp), a low-rank path beside attention (LAuReL).
void build_gemma3n(const Config& config, ModelSpec& spec) {
  Gemma4Sizes sizes;
  SizeRules rules;
  rules.head_dim = 256;
  rules.read_width = false;
  sizes.common = read_sizes(config, spec, true, rules);
  sizes.common.width = read_one_width(config);
  sizes.shared_width = sizes.common.width;
  sizes.global_head_dim = sizes.common.head_dim;
  sizes.global_kv_heads = sizes.common.kv_heads;
  DecoderStyle style;
  style.full_every = 5;
  const Windows windows = read_windows(config, sizes.common.layers, style);
  sizes.sliding = windows.sliding;
  sizes.window = windows.window;
  read_shared_layers(config, sizes);
  read_per_layer_embedding(config, spec, sizes);
  const std::int64_t streams = config.class_default({"altup_num_inputs"}, 4, {1, 64});
  const std::int64_t rank = config.class_default({"laurel_rank"}, 64, {1, kMostHidden});
  RopeRules rope;
  rope.head_dim = sizes.common.head_dim;
  rope.default_max_position = 32768;
  rope.theta_key = "rope_local_base_freq";
  rope.scaled = false;
  rope.layer_type = "sliding_attention";
  sizes.sliding_rope = add_rope(config, spec, rope);
  rope.theta_key = "rope_theta";
  rope.theta_default = 1e6;
  rope.scaled = true;
  rope.layer_type = "full_attention";
  sizes.global_rope = add_rope(config, spec, rope);

  const auto make = [&](int variant) {
    const bool sliding = (variant & kSliding) != 0;
    LayerSpec layer;
    std::vector<TensorSpec>& tensors = layer.tensors;
    add_vector(tensors, "altup.correct_output_scale", spec.hidden);
    add_replicated(tensors, "altup.correction_coefs.weight", streams, streams, false);
    add_replicated(tensors, "altup.prediction_coefs.weight", streams * streams, streams, false);
    add_replicated(tensors, "altup.modality_router.weight", streams, spec.hidden, false);
    add_norm(tensors, "altup.router_norm.weight", spec.hidden);
    add_attention(spec, layer, attention_of(sizes, sliding),
                  {.qkv_bias = config.flag("attention_bias"),
                   .output_bias = config.flag("attention_bias"),
                   .qk_norm = QkNorm::kPerHead,
                   .norms_first = true});
    if ((variant & kSharesKv) != 0) {
      take_kv_from(layer, kv_source(sizes, sliding));
    }
    add_ffn(spec, layer, FfnKind::kGated, sizes.common.width);
    add_replicated(tensors, "laurel.linear_left.weight", rank, spec.hidden);
    add_replicated(tensors, "laurel.linear_right.weight", spec.hidden, rank);
    add_norm(tensors, "laurel.post_laurel_norm.weight", spec.hidden);
    if (sizes.per_layer_width > 0) {
      add_per_layer_input(spec, tensors, sizes.per_layer_width);
    }
    add_four_norms(spec, tensors);
    return layer;
  };
  add_layers(
      spec, sizes.common.layers, [&](int i) { return variant_of(sizes, i); }, make);
  add_embedding_and_head(spec, {.embedding_scale = true});
  if (sizes.per_layer_width > 0) {
    add_per_layer_embedding(config, spec, sizes);
  }
  for (std::int64_t i = 1; i < streams; ++i) {
    for (const std::string_view name :
         {"altup_projections.weight", "altup_unembed_projections.weight"}) {
      add_replicated(spec.before, name, spec.hidden, spec.hidden);
      spec.before.back().place = Place::kEveryStage;
      spec.before.back().quantisable = false;
    }
  }
}

}  // namespace oomcast::models
