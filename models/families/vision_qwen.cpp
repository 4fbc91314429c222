// Vision encoders with native resolution whose patches are merged before the language model: Qwen
// 2-VL to 3.5, GLM-4.1V, Moonshot's MoonViT.
#include "models/families/towers.hpp"

namespace oomcast::models {
namespace {

struct Patches {
  std::int64_t pixels = 1;  // values of one patch
  std::int64_t merged = 4;  // patches that become one token
};

Patches read_patches(const Config& tower, std::int64_t patch, std::int64_t frames) {
  const std::int64_t side = tower.plain({"patch_size", "spatial_patch_size"}, patch, {1, 1024});
  const std::int64_t merge = tower.plain({"spatial_merge_size"}, 2, {1, 64});
  const std::int64_t channels =
      tower.plain({"in_channels", "in_chans", "num_channels"}, 3, {1, 64});
  const std::int64_t depth = tower.plain({"temporal_patch_size"}, frames, {1, 64});
  return {channels * depth * side * side, merge * merge};
}

// The largest image: as many tokens as the processors of the family allow by default
// (preprocessor_config.json: 12,845,056 pixels at 28 x 28 a token, 16,777,216 at 32 x 32).
EncoderRun native_run(const EncoderLayers& layers, const Patches& patches) {
  constexpr std::int64_t kMostTokens = 16'384;
  EncoderRun run;
  run.width = layers.width;
  run.ffn = layers.ffn;
  run.gated = layers.gated;
  run.rotary = true;
  run.patch_values = patches.pixels;
  run.image_tokens = kMostTokens;
  run.image_patches = kMostTokens * patches.merged;
  return run;
}

// Norm, then a feed-forward over the merged patches into the language model's width.
void write_merger(TowerWriter& tower, std::int64_t norm_width, bool norm_bias,
                  std::int64_t merged_width, std::int64_t out) {
  tower.norm("merger.norm.weight", norm_bias ? "merger.norm.bias" : "", norm_width);
  const Extent inner{merged_width, 1, Split::kWhereItDivides};
  tower.linear("merger.linear_fc1.weight", "merger.linear_fc1.bias", {inner},
               {.size = merged_width});
  tower.linear("merger.linear_fc2.weight", {}, {{.size = out}}, inner);
  tower.vector("merger.linear_fc2.bias", out);
}

}  // namespace

void add_qwen2_vision(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  const std::int64_t ratio = tower.plain({"mlp_ratio"}, 4, {1, 64});
  // hidden_size is the language model's here, embed_dim the encoder's.
  EncoderLayers layers;
  layers.width = tower.class_default({"embed_dim"}, 1280, {1, kMostHidden});
  layers.heads = tower.class_default({"num_heads"}, 16, {1, kMostHeads});
  layers.count = tower.class_default({"depth"}, 32, {1, kMostLayers});
  layers.ffn = layers.width * ratio;
  const Patches patches = read_patches(tower, 14, 2);
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.table("patch_embed.proj.weight", layers.width, patches.pixels);
  write_layers(writer, layers);
  writer.begin(1);
  write_merger(writer, layers.width, true, layers.width * patches.merged,
               tower.plain({"hidden_size"}, spec.hidden, {1, kMostHidden}));
  spec.towers.push_back(writer.take());
  spec.towers.back().run = native_run(layers, patches);
}

void add_qwen25_vision(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  EncoderLayers layers =
      read_layers(tower, {.width = 1280, .heads = 16, .layers = 32, .ffn = 3420});
  layers.gated = true;
  layers.norm_bias = false;
  const Patches patches = read_patches(tower, 14, 2);
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.table("patch_embed.proj.weight", layers.width, patches.pixels);
  write_layers(writer, layers);
  writer.begin(1);
  write_merger(writer, layers.width, false, layers.width * patches.merged,
               tower.plain({"out_hidden_size"}, spec.hidden, {1, kMostHidden}));
  spec.towers.push_back(writer.take());
  spec.towers.back().run = native_run(layers, patches);
}

// Qwen3-VL also feeds three inner layers' outputs to the language model, each through a merger of
// its own (deepstack).
void add_qwen3_vision(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  const EncoderLayers layers =
      read_layers(tower, {.width = 1152, .heads = 16, .layers = 27, .ffn = 4304});
  const Patches patches = read_patches(tower, 16, 2);
  const std::int64_t positions =
      tower.class_default({"num_position_embeddings"}, 2304, {1, kMostPosition});
  const std::int64_t out = tower.plain({"out_hidden_size"}, spec.hidden, {1, kMostHidden});
  const bool deep = spec.family.starts_with("qwen3_vl") || spec.family == "qwen3_omni_moe";
  const auto taps = tower.integers("deepstack_visual_indexes", {0, layers.count - 1});
  if (deep && !taps && !tower.has("deepstack_visual_indexes")) {
    tower.assume("vision_config.deepstack_visual_indexes", "3 layers",
                 "not in the file; every published size has three");
  }
  const std::int64_t mergers = taps ? static_cast<std::int64_t>(taps->size()) : (deep ? 3 : 0);
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.linear("patch_embed.proj.weight", "patch_embed.proj.bias", {{.size = layers.width}},
                {.size = patches.pixels});
  writer.table("pos_embed.weight", positions, layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  const std::int64_t merged = layers.width * patches.merged;
  write_merger(writer, layers.width, true, merged, out);
  if (mergers > 0) {
    writer.begin(mergers);
    write_merger(writer, merged, true, merged, out);
  }
  spec.towers.push_back(writer.take());
  spec.towers.back().run = native_run(layers, patches);
  spec.towers.back().run->embeddings_a_token = 1 + mergers;
}

// intermediate_size is the merger's; the layers' feed-forward is as wide as the language model.
void add_glm4v_vision(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  EncoderLayers layers =
      read_layers(tower, {.width = 1536, .heads = 12, .layers = 24, .ffn = 13696});
  const std::int64_t merger_width = layers.ffn;
  const std::int64_t out = tower.plain({"out_hidden_size"}, spec.hidden, {1, kMostHidden});
  layers.ffn = out;
  layers.gated = true;
  layers.norm_bias = false;
  layers.qkv_bias = tower.flag("attention_bias");
  layers.output_bias = false;
  layers.ffn_bias = false;
  const Patches patches = read_patches(tower, 14, 2);
  const std::int64_t side = tower.class_default({"image_size"}, 336, {1, 65536}) /
                            tower.plain({"patch_size"}, 14, {1, 1024});
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.linear("patch_embed.proj.weight", "patch_embed.proj.bias", {{.size = layers.width}},
                {.size = patches.pixels});
  writer.table("embeddings.position_embedding.weight", side * side, layers.width);
  writer.norm("post_conv_layernorm.weight", {}, layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  const Extent inner{merger_width, 1, Split::kWhereItDivides};
  writer.table("merger.proj.weight", out, out);
  writer.norm("merger.post_projection_norm.weight", "merger.post_projection_norm.bias", out);
  writer.linear("merger.gate_up_proj.weight", {}, {inner, inner}, {.size = out});
  writer.linear("merger.down_proj.weight", {}, {{.size = out}}, inner);
  writer.linear("downsample.weight", "downsample.bias", {{.size = out}},
                {.size = layers.width * patches.merged});
  writer.norm("post_layernorm.weight", {}, layers.width);
  spec.towers.push_back(writer.take());
}

// MoonViT behind Kimi-VL, Kimi K2.5 to K2.7 and LocateAnything.
void add_moonvit(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  const EncoderLayers layers =
      read_layers(tower, {.width = 1152, .heads = 16, .layers = 27, .ffn = 4304});
  const Patches patches = read_patches(tower, 14, 1);
  const Range side{1, 65536};
  const std::int64_t positions = tower.class_default({"init_pos_emb_height"}, 64, side) *
                                 tower.class_default({"init_pos_emb_width"}, 64, side);
  const std::int64_t merged = layers.width * patches.merged;
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.linear("patch_embed.proj.weight", "patch_embed.proj.bias", {{.size = layers.width}},
                {.size = patches.pixels});
  writer.table("patch_embed.pos_emb.weight", positions, layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  writer.norm("final_layernorm.weight", "final_layernorm.bias", layers.width);
  if (spec.architecture.starts_with("LocateAnything")) {
    writer.norm("mlp1.norm.weight", "mlp1.norm.bias", merged);
    writer.linear("mlp1.fc1.weight", "mlp1.fc1.bias", {{.size = spec.hidden}}, {.size = merged});
    writer.linear("mlp1.fc2.weight", "mlp1.fc2.bias", {{.size = spec.hidden}},
                  {.size = spec.hidden});
  } else {
    write_merger(writer, layers.width, true, merged, spec.hidden);
  }
  spec.towers.push_back(writer.take());
}

// Kimi K3: as MoonViT, without biases, with norms of weights only, and attention wider than the
// encoder. Its projector is taken as MoonViT's.
void add_kimi_vision(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  EncoderLayers layers;
  layers.width = tower.required({"vt_hidden_size"}, {1, kMostHidden});
  layers.heads = tower.required({"vt_num_attention_heads"}, {1, kMostHeads});
  layers.count = tower.required({"vt_num_hidden_layers"}, {1, kMostLayers});
  layers.ffn = tower.required({"vt_intermediate_size"}, {1, kMostWidth});
  layers.inner = tower.plain({"qkv_hidden_size"}, layers.width, {1, kMostHidden});
  layers.qkv_bias = tower.flag("attn_bias");
  layers.output_bias = layers.qkv_bias;
  layers.ffn_bias = tower.flag("linear_bias");
  layers.norm_bias = tower.text("norm_type").value_or("layernorm") != "rmsnorm";
  const Patches patches = read_patches(tower, 14, 1);
  const Range side{1, 65536};
  const std::int64_t positions = tower.class_default({"init_pos_emb_height"}, 64, side) *
                                 tower.class_default({"init_pos_emb_width"}, 64, side);
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.table("patch_embed.proj.weight", layers.width, patches.pixels);
  writer.table("patch_embed.pos_emb.weight", positions, layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  writer.norm("final_layernorm.weight", layers.norm_bias ? "final_layernorm.bias" : "",
              layers.width);
  write_merger(writer, layers.width, layers.norm_bias, layers.width * patches.merged, spec.hidden);
  spec.towers.push_back(writer.take());
}

}  // namespace oomcast::models
