// Vision transformers of a fixed resolution or of their own kind: SigLIP behind Gemma 3, CLIP and
// SigLIP behind LLaVA, Pixtral, the encoders of Llama 3.2 Vision, Llama 4, Gemma 4, Muse Glimmer,
// MiniMax M3 and DeepSeek-VL2.
#include "models/families/towers.hpp"

namespace oomcast::models {
namespace {

constexpr Range kSide{1, 65536};

// Patches along one side of the image.
std::int64_t grid_side(const Config& tower, std::int64_t image, std::int64_t patch) {
  const std::int64_t pixels = tower.class_default({"image_size"}, image, kSide);
  const std::int64_t size = tower.plain({"patch_size"}, patch, {1, 1024});
  return std::max<std::int64_t>(1, pixels / size);
}

std::int64_t patch_values(const Config& tower, std::int64_t patch) {
  const std::int64_t size = tower.plain({"patch_size"}, patch, {1, 1024});
  return tower.plain({"num_channels"}, 3, {1, 64}) * size * size;
}

void write_biased(TowerWriter& writer, std::string_view weight, std::string_view bias,
                  std::int64_t rows, std::int64_t columns) {
  writer.linear(weight, bias, {{.size = rows}}, {.size = columns});
}

// Patches, positions, layers and the last norm of a SigLIP encoder.
EncoderLayers write_siglip(TowerWriter& writer, const Config& tower, std::int64_t image) {
  const EncoderLayers layers =
      read_layers(tower, {.width = 1152, .heads = 16, .layers = 27, .ffn = 4304});
  const std::int64_t side = grid_side(tower, image, 14);
  writer.begin(1);
  write_biased(writer, "embeddings.patch_embedding.weight", "embeddings.patch_embedding.bias",
               layers.width, patch_values(tower, 14));
  writer.table("embeddings.position_embedding.weight", side * side, layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  writer.norm("post_layernorm.weight", "post_layernorm.bias", layers.width);
  return layers;
}

// A pass over images of `patches` patches that become `tokens` tokens.
EncoderRun plain_run(const EncoderLayers& layers, std::int64_t values, std::int64_t patches,
                     std::int64_t tokens) {
  EncoderRun run;
  run.width = layers.width;
  run.ffn = layers.ffn;
  run.gated = layers.gated;
  run.patch_values = values;
  run.image_patches = patches;
  run.image_tokens = tokens;
  return run;
}

EncoderLayers write_clip(TowerWriter& writer, const Config& tower) {
  const EncoderLayers layers =
      read_layers(tower, {.width = 1024, .heads = 16, .layers = 24, .ffn = 4096});
  const std::int64_t side = grid_side(tower, 336, 14);
  writer.begin(1);
  writer.vector("embeddings.class_embedding", layers.width);
  writer.table("embeddings.patch_embedding.weight", layers.width, patch_values(tower, 14));
  writer.table("embeddings.position_embedding.weight", side * side + 1, layers.width);
  writer.norm("pre_layrnorm.weight", "pre_layrnorm.bias", layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  writer.norm("post_layernorm.weight", "post_layernorm.bias", layers.width);
  return layers;
}

}  // namespace

void add_gemma3_vision(const Config& config, const Config& tower, ModelSpec& spec) {
  TowerWriter writer(Component::kVision);
  const EncoderLayers layers = write_siglip(writer, tower, 896);
  writer.table("multi_modal_projector.mm_input_projection_weight", layers.width, spec.hidden);
  writer.norm("multi_modal_projector.mm_soft_emb_norm.weight", {}, layers.width);
  spec.towers.push_back(writer.take());
  const std::int64_t side = grid_side(tower, 896, 14);
  spec.towers.back().run =
      plain_run(layers, patch_values(tower, 14), side * side,
                config.class_default({"mm_tokens_per_image"}, 256, {1, 65536}));
}

namespace {

// The largest image: as many tiles as the grid with most of them has beside the whole image at one
// tile's size, with a token after every row of the tiles
// (vllm/model_executor/models/llava_next.py).
EncoderRun llava_run(const Config& config, const EncoderLayers& layers, std::int64_t values,
                     std::int64_t side, std::int64_t image) {
  constexpr std::size_t kMostGrids = 1024;
  const std::int64_t patches = side * side;
  EncoderRun largest = plain_run(layers, values, patches, patches);
  const Json* grids = config.find("image_grid_pinpoints");
  if (grids == nullptr || !grids->is_array() || grids->size() > kMostGrids) {
    return largest;
  }
  for (const Json& grid : *grids) {
    if (!grid.is_array() || grid.size() != 2 || !grid[0].is_number_integer() ||
        !grid[1].is_number_integer()) {
      continue;
    }
    const std::int64_t rows = std::clamp<std::int64_t>(grid[0].get<std::int64_t>() / image, 1, 256);
    const std::int64_t columns =
        std::clamp<std::int64_t>(grid[1].get<std::int64_t>() / image, 1, 256);
    const std::int64_t tokens = patches + rows * side * (columns * side + 1);
    if (tokens > largest.image_tokens) {
      largest = plain_run(layers, values, (1 + rows * columns) * patches, tokens);
    }
  }
  return largest;
}

}  // namespace

// The projector sees the outputs of one layer, or of several side by side.
void add_llava_vision(const Config& config, const Config& tower, ModelSpec& spec) {
  TowerWriter writer(Component::kVision);
  const bool clip = tower.text("model_type").value_or("clip_vision_model").starts_with("clip");
  const EncoderLayers layers = clip ? write_clip(writer, tower) : write_siglip(writer, tower, 384);
  const Json* features = config.find("vision_feature_layer");
  const auto tapped = static_cast<std::int64_t>(
      features != nullptr && features->is_array() ? std::max<std::size_t>(features->size(), 1) : 1);
  if (tapped > layers.count) {
    config.complain("vision_feature_layer", fmt::format("at most {} layers", layers.count));
  }
  write_biased(writer, "multi_modal_projector.linear_1.weight",
               "multi_modal_projector.linear_1.bias", spec.hidden,
               layers.width * std::min(tapped, layers.count));
  write_biased(writer, "multi_modal_projector.linear_2.weight",
               "multi_modal_projector.linear_2.bias", spec.hidden, spec.hidden);
  if (spec.architecture.starts_with("LlavaNext")) {
    writer.vector("image_newline", spec.hidden);
  }
  spec.towers.push_back(writer.take());
  const std::int64_t image = tower.class_default({"image_size"}, clip ? 336 : 384, kSide);
  spec.towers.back().run = llava_run(config, layers, patch_values(tower, 14),
                                     grid_side(tower, clip ? 336 : 384, 14), image);
}

void add_pixtral(const Config& config, const Config& tower, ModelSpec& spec) {
  EncoderLayers layers =
      read_layers(tower, {.width = 1024, .heads = 16, .layers = 24, .ffn = 4096});
  layers.inner =
      layers.heads * tower.plain({"head_dim"}, layers.width / layers.heads, {1, kMostHeadDim});
  layers.gated = true;
  layers.norm_bias = false;
  layers.qkv_bias = false;
  layers.output_bias = false;
  layers.ffn_bias = false;
  const std::int64_t merge = config.class_default({"spatial_merge_size"}, 2, {1, 64});
  const bool bias = config.flag("multimodal_projector_bias");
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.table("patch_conv.weight", layers.width, patch_values(tower, 16));
  writer.norm("ln_pre.weight", {}, layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  writer.norm("multi_modal_projector.norm.weight", {}, layers.width);
  writer.table("multi_modal_projector.patch_merger.merging_layer.weight", layers.width,
               layers.width * merge * merge);
  write_biased(writer, "multi_modal_projector.linear_1.weight",
               bias ? "multi_modal_projector.linear_1.bias" : "", spec.hidden, layers.width);
  write_biased(writer, "multi_modal_projector.linear_2.weight",
               bias ? "multi_modal_projector.linear_2.bias" : "", spec.hidden, spec.hidden);
  spec.towers.push_back(writer.take());
  // The largest image is a square of image_size (PixtralHFEncoderInfo).
  const std::int64_t side = std::max<std::int64_t>(1, grid_side(tower, 1024, 16) / merge);
  EncoderRun run =
      plain_run(layers, patch_values(tower, 16), side * side * merge * merge, side * side);
  run.rotary = true;
  spec.towers.back().run = run;
}

void add_llama4_vision(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  const EncoderLayers layers =
      read_layers(tower, {.width = 1408, .heads = 16, .layers = 34, .ffn = 5632});
  const std::int64_t side = grid_side(tower, 336, 14);
  const Range width{1, kMostWidth};
  const std::int64_t projected = tower.class_default({"projector_input_dim"}, 4096, width);
  const std::int64_t adapted = tower.class_default({"projector_output_dim"}, 4096, width);
  const std::int64_t out = tower.class_default({"vision_output_dim"}, 4096, width);
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.table("patch_embedding.linear.weight", layers.width, patch_values(tower, 14));
  writer.vector("class_embedding", layers.width);
  writer.table("positional_embedding_vlm", side * side + 1, layers.width);
  writer.norm("layernorm_pre.weight", "layernorm_pre.bias", layers.width);
  writer.norm("layernorm_post.weight", "layernorm_post.bias", layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  // Divided as MLPs are; the projector's output is gathered (vLLM mllama4.py).
  const Extent inner{projected, 1, Split::kWhereItDivides};
  writer.linear("vision_adapter.mlp.fc1.weight", {}, {inner}, {.size = layers.ffn});
  writer.linear("vision_adapter.mlp.fc2.weight", {}, {{.size = adapted}}, inner);
  writer.linear("multi_modal_projector.linear_1.weight", {},
                {{spec.hidden, 1, Split::kWhereItDivides}}, {.size = out});
  spec.towers.push_back(writer.take());
  // The largest image: max_patches tiles (preprocessor_config.json: 16) beside the whole of it at
  // one tile's size; a token is pixel_shuffle_ratio, a half, of a patch in both directions.
  constexpr std::int64_t kTiles = 16 + 1;
  constexpr std::int64_t kShuffled = 4;
  EncoderRun run = plain_run(layers, patch_values(tower, 14), kTiles * side * side,
                             std::max<std::int64_t>(1, kTiles * side * side / kShuffled));
  run.rotary = true;
  spec.towers.back().run = run;
}

// Tiles of an image pass 32 layers and 8 gated ones; positions are learnt for every way to tile.
void add_mllama_vision(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  EncoderLayers layers =
      read_layers(tower, {.width = 1280, .heads = 16, .layers = 32, .ffn = 5120});
  layers.qkv_bias = false;
  layers.output_bias = false;
  EncoderLayers global = layers;
  global.count = tower.class_default({"num_global_layers"}, 8, {1, kMostLayers});
  global.gates = 2;
  const std::int64_t side = grid_side(tower, 448, 14);
  const std::int64_t positions = side * side + 1;
  const std::int64_t tiles = tower.class_default({"max_num_tiles"}, 4, {1, 1024});
  const Json* listed = tower.find("supported_aspect_ratios");
  const auto ratios = static_cast<std::int64_t>(
      listed != nullptr && listed->is_array() ? std::min<std::size_t>(listed->size(), 1024) : 8);
  const std::int64_t out =
      tower.class_default({"vision_output_dim"}, layers.width * 6, {1, kMostWidth});
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.vector("class_embedding", layers.width);
  writer.table("patch_embedding.weight", layers.width, patch_values(tower, 14));
  writer.vector("gated_positional_embedding.gate", 1);
  writer.table("gated_positional_embedding.embedding", positions, layers.width);
  writer.table("gated_positional_embedding.tile_embedding.weight", ratios + 1,
               tiles * positions * layers.width);
  writer.vector("pre_tile_positional_embedding.gate", 1);
  writer.table("pre_tile_positional_embedding.embedding.weight", ratios + 1, tiles * layers.width);
  writer.vector("post_tile_positional_embedding.gate", 1);
  writer.table("post_tile_positional_embedding.embedding.weight", ratios + 1, tiles * layers.width);
  writer.norm("layernorm_pre.weight", "layernorm_pre.bias", layers.width);
  writer.norm("layernorm_post.weight", "layernorm_post.bias", layers.width);
  write_layers(writer, layers);
  write_layers(writer, global);
  writer.begin(1);
  write_biased(writer, "multi_modal_projector.weight", "multi_modal_projector.bias", spec.hidden,
               out);
  spec.towers.push_back(writer.take());
}

// Linears may be clipped to bounds, which are buffers of one value each.
void add_gemma4_vision(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  constexpr std::int64_t kBoundsALayer = 22;
  EncoderLayers layers = read_layers(tower, {.width = 768, .heads = 12, .layers = 16, .ffn = 3072});
  layers.inner =
      layers.heads * tower.plain({"head_dim"}, layers.width / layers.heads, {1, kMostHeadDim});
  layers.gated = true;
  layers.norms = 4;
  layers.qk_norm = true;
  layers.norm_bias = false;
  layers.qkv_bias = tower.flag("attention_bias");
  layers.output_bias = layers.qkv_bias;
  layers.ffn_bias = false;
  layers.scalars = tower.flag("use_clipped_linears") ? kBoundsALayer : 0;
  const std::int64_t positions =
      tower.class_default({"position_embedding_size"}, 10240, {1, kMostPosition});
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.table("patch_embedder.position_embedding_table", 2 * positions, layers.width);
  writer.table("patch_embedder.input_proj.weight", layers.width, patch_values(tower, 16));
  write_layers(writer, layers);
  writer.begin(1);
  if (tower.flag("standardize")) {
    writer.vector("std_bias", layers.width);
    writer.vector("std_scale", layers.width);
  }
  writer.table("embed_vision.embedding_projection.weight", spec.hidden, layers.width);
  spec.towers.push_back(writer.take());
}

void add_muse_vision(const Config& config, const Config& tower, ModelSpec& spec) {
  const EncoderLayers layers =
      read_layers(tower, {.width = 1536, .heads = 16, .layers = 50, .ffn = 8960});
  const std::int64_t positions = tower.class_default({"pos_emb_height"}, 32, kSide) *
                                 tower.class_default({"pos_emb_width"}, 32, kSide);
  const std::int64_t frames = tower.class_default({"patch_temporal"}, 2, {1, 64});
  const std::int64_t merge = tower.class_default({"merge_size"}, 2, {1, 64});
  const std::int64_t adapted =
      config.class_default({"projector_hidden_size"}, 4096, {1, kMostWidth});
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.table("conv1_linear.weight", layers.width, frames * patch_values(tower, 14));
  writer.table("positional_embedding_vlm", positions, layers.width);
  writer.norm("ln_pre.weight", "ln_pre.bias", layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  writer.norm("ln_post.weight", "ln_post.bias", layers.width);
  writer.table("vision_adapter.c_fc.weight", adapted, layers.width * merge * merge);
  writer.table("vision_adapter.c_proj.weight", adapted, adapted);
  writer.table("vision_projection.weight", spec.hidden, adapted);
  spec.towers.push_back(writer.take());
}

void add_minimax_vision(const Config& config, const Config& tower, ModelSpec& spec) {
  const EncoderLayers layers =
      read_layers(tower, {.width = 1280, .heads = 16, .layers = 32, .ffn = 5120});
  std::int64_t frames = 2;
  std::int64_t merge = 2;
  if (const auto compression = tower.section("img_token_compression_config")) {
    frames = compression->plain({"temporal_patch_size"}, frames, {1, 64});
    merge = compression->plain({"spatial_merge_size"}, merge, {1, 64});
  }
  const std::int64_t inner = config.plain({"projector_hidden_size"}, spec.hidden, {1, kMostWidth});
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  writer.table("embeddings.patch_embedding.weight", layers.width, frames * patch_values(tower, 14));
  writer.norm("pre_layrnorm.weight", "pre_layrnorm.bias", layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  writer.norm("post_layernorm.weight", "post_layernorm.bias", layers.width);
  write_biased(writer, "multi_modal_projector.linear_1.weight",
               "multi_modal_projector.linear_1.bias", inner, layers.width);
  write_biased(writer, "multi_modal_projector.linear_2.weight",
               "multi_modal_projector.linear_2.bias", spec.hidden, inner);
  write_biased(writer, "patch_merge_mlp.linear_1.weight", "patch_merge_mlp.linear_1.bias", inner,
               spec.hidden * merge * merge);
  write_biased(writer, "patch_merge_mlp.linear_2.weight", "patch_merge_mlp.linear_2.bias",
               spec.hidden, inner);
  spec.towers.push_back(writer.take());
}

// SigLIP with its feed-forward given as a ratio; four patches are merged by a projector of two
// layers; two vectors part tiles and views.
void add_deepseek_vl2_vision(const Config& config, const Config& tower, ModelSpec& spec) {
  constexpr std::int64_t kMerged = 4;
  EncoderLayers layers;
  layers.width = tower.class_default({"width"}, 1152, {1, kMostHidden});
  layers.count = tower.class_default({"layers"}, 27, {1, kMostLayers});
  layers.heads = tower.class_default({"heads"}, 16, {1, kMostHeads});
  const double ratio = tower.number("mlp_ratio").value_or(3.7362);
  if (!(ratio > 0.0 && ratio <= 64.0) || layers.width % layers.heads != 0) {
    tower.complain("mlp_ratio", "a number above 0 and at most 64, and heads that divide the width");
    return;
  }
  layers.ffn = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(ratio * static_cast<double>(layers.width)));
  const std::int64_t side = grid_side(tower, 384, 14);
  std::int64_t out = spec.hidden;
  if (const auto projector = config.section("projector_config")) {
    out = projector->plain({"n_embed"}, spec.hidden, {1, kMostHidden});
  }
  TowerWriter writer(Component::kVision);
  writer.begin(1);
  write_biased(writer, "patch_embed.proj.weight", "patch_embed.proj.bias", layers.width,
               patch_values(tower, 14));
  writer.table("pos_embed", side * side, layers.width);
  write_layers(writer, layers);
  writer.begin(1);
  writer.norm("norm.weight", "norm.bias", layers.width);
  write_biased(writer, "projector.layers.0.weight", "projector.layers.0.bias", out,
               layers.width * kMerged);
  write_biased(writer, "projector.layers.2.weight", "projector.layers.2.bias", out, out);
  writer.vector("image_newline", out);
  writer.vector("view_seperator", out);
  spec.towers.push_back(writer.take());
}

}  // namespace oomcast::models
