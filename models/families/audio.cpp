// Encoders of sound: Gemma 4's conformer, and the Whisper-like encoders of Qwen 2.5-Omni and
// 3-Omni.
#include "models/families/towers.hpp"

namespace oomcast::models {
namespace {

constexpr std::int64_t kConformerScalars =
    41;  // bounds of clipped linears, gradient clipping, caps

struct Conformer {
  std::int64_t width = 1024;
  std::int64_t heads = 8;
  std::int64_t layers = 12;
  std::int64_t kernel = 5;
};

// Half-step feed-forward; the first and the last part of a layer.
void write_half_step(TowerWriter& writer, const Conformer& sizes) {
  const Extent inner{4 * sizes.width, 1, Split::kWhereItDivides};
  const Extent width{.size = sizes.width};
  writer.norm("conformer.ffw.pre_layer_norm.weight", {}, sizes.width);
  writer.linear("conformer.ffw.ffw_layer_1.weight", {}, {inner}, width);
  writer.linear("conformer.ffw.ffw_layer_2.weight", {}, {width}, inner);
  writer.norm("conformer.ffw.post_layer_norm.weight", {}, sizes.width);
}

void write_conformer(TowerWriter& writer, const Conformer& sizes) {
  const std::int64_t head = sizes.width / sizes.heads;
  const Extent heads{sizes.heads, head, Split::kWhereItDivides};
  const Extent width{.size = sizes.width};
  writer.begin(sizes.layers);
  write_half_step(writer, sizes);
  writer.norm("conformer.attention.pre_attn_norm.weight", {}, sizes.width);
  writer.vector("conformer.attention.per_dim_scale", head);
  writer.linear("conformer.attention.pos_proj.weight", {}, {heads}, width);
  writer.linear("conformer.attention.qkv_proj.weight", {}, {heads, heads, heads}, width);
  writer.linear("conformer.attention.post.weight", {}, {width}, heads);
  writer.norm("conformer.attention.post_norm.weight", {}, sizes.width);
  writer.norm("conformer.lconv1d.pre_layer_norm.weight", {}, sizes.width);
  writer.table("conformer.lconv1d.linear_start.weight", 2 * sizes.width, sizes.width);
  writer.table("conformer.lconv1d.depthwise_conv1d.weight", sizes.width, sizes.kernel);
  writer.norm("conformer.lconv1d.conv_norm.weight", {}, sizes.width);
  writer.table("conformer.lconv1d.linear_end.weight", sizes.width, sizes.width);
  write_half_step(writer, sizes);
  writer.norm("conformer.norm.weight", {}, sizes.width);
  writer.scalars("conformer.scalar", kConformerScalars);
}

void write_biased(TowerWriter& writer, std::string_view weight, std::string_view bias,
                  std::int64_t rows, std::int64_t columns) {
  writer.linear(weight, bias, {{.size = rows}}, {.size = columns});
}

}  // namespace

// Two convolutions halve time and frequency twice: 128 mel bands become 32.
void add_gemma4_audio(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  constexpr std::int64_t kTaps = 9;  // 3 x 3
  constexpr std::int64_t kBands = 32;
  Conformer sizes;
  sizes.width = tower.required({"hidden_size"}, {1, kMostHidden});
  sizes.heads = tower.required({"num_attention_heads"}, {1, kMostHeads});
  sizes.layers = tower.required({"num_hidden_layers"}, {1, kMostLayers});
  sizes.kernel = tower.class_default({"conv_kernel_size"}, 5, {1, 1024});
  if (sizes.width % sizes.heads != 0) {
    tower.complain("num_attention_heads", fmt::format("a divisor of the width {}", sizes.width));
    return;
  }
  const std::int64_t out = tower.plain({"output_proj_dims"}, spec.hidden, {1, kMostHidden});
  const auto channels = tower.integers("subsampling_conv_channels", {1, 65536})
                            .value_or(std::vector<std::int64_t>{128, 32});
  if (channels.size() != 2) {
    tower.complain("subsampling_conv_channels", "two numbers of channels");
    return;
  }
  TowerWriter writer(Component::kAudio);
  writer.begin(1);
  writer.table("subsample_conv_projection.conv_0.weight", channels[0], kTaps);
  writer.norm("subsample_conv_projection.norm_0.weight", {}, channels[0]);
  writer.table("subsample_conv_projection.conv_1.weight", channels[1], channels[0] * kTaps);
  writer.norm("subsample_conv_projection.norm_1.weight", {}, channels[1]);
  writer.table("subsample_conv_projection.input_proj.weight", sizes.width, channels[1] * kBands);
  write_conformer(writer, sizes);
  writer.begin(1);
  write_biased(writer, "output_proj.weight", "output_proj.bias", out, sizes.width);
  writer.table("embed_audio.embedding_projection.weight", spec.hidden, out);
  spec.towers.push_back(writer.take());
}

void add_qwen25_audio(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  EncoderLayers layers =
      read_layers(tower, {.width = 1280, .heads = 20, .layers = 32, .ffn = 5120});
  layers.key_bias = false;
  const std::int64_t bands = tower.class_default({"num_mel_bins"}, 128, {1, 65536});
  const std::int64_t out = tower.plain({"output_dim"}, spec.hidden, {1, kMostHidden});
  constexpr std::int64_t kKernel = 3;
  TowerWriter writer(Component::kAudio);
  writer.begin(1);
  write_biased(writer, "conv1.weight", "conv1.bias", layers.width, bands * kKernel);
  write_biased(writer, "conv2.weight", "conv2.bias", layers.width, layers.width * kKernel);
  write_layers(writer, layers);
  writer.begin(1);
  writer.norm("ln_post.weight", "ln_post.bias", layers.width);
  writer.table("audio_bos_eos_token.weight", 2, out);
  write_biased(writer, "proj.weight", "proj.bias", out, layers.width);
  spec.towers.push_back(writer.take());
}

// Three convolutions halve 128 mel bands to 16.
void add_qwen3_audio(const Config& /*config*/, const Config& tower, ModelSpec& spec) {
  const EncoderLayers layers =
      read_layers(tower, {.width = 1280, .heads = 20, .layers = 32, .ffn = 5120});
  const std::int64_t channels =
      tower.class_default({"downsample_hidden_size"}, 480, {1, kMostHidden});
  const std::int64_t bands = tower.class_default({"num_mel_bins"}, 128, {1, 65536});
  const std::int64_t out = tower.plain({"output_dim"}, spec.hidden, {1, kMostHidden});
  constexpr std::int64_t kTaps = 9;  // 3 x 3
  TowerWriter writer(Component::kAudio);
  writer.begin(1);
  write_biased(writer, "conv2d1.weight", "conv2d1.bias", channels, kTaps);
  write_biased(writer, "conv2d2.weight", "conv2d2.bias", channels, channels * kTaps);
  write_biased(writer, "conv2d3.weight", "conv2d3.bias", channels, channels * kTaps);
  writer.table("conv_out.weight", layers.width, channels * div_ceil(bands, 8));
  write_layers(writer, layers);
  writer.begin(1);
  writer.norm("ln_post.weight", "ln_post.bias", layers.width);
  write_biased(writer, "proj1.weight", "proj1.bias", layers.width, layers.width);
  write_biased(writer, "proj2.weight", "proj2.bias", out, layers.width);
  spec.towers.push_back(writer.take());
}

}  // namespace oomcast::models
