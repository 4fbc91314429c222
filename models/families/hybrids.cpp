// Decoders that mix state-space layers with attention: Nemotron-H and Nemotron 3, Granite 4,
// Falcon H1, Jamba.
#include <array>

#include "models/families/builders.hpp"
#include "models/families/layer_parts.hpp"
#include "models/families/mamba.hpp"

namespace oomcast::models {
namespace {

// ---- Nemotron-H --------------------------------------------------------------------------------

// One block a layer: M mamba, * attention, - feed-forward, E mixture of experts.
constexpr std::string_view kBlocks = "M*-E";

// A pattern as letters or as a list of words.
std::string read_blocks(const Config& config, std::string_view pattern_key,
                        std::string_view list_key) {
  if (const auto words = config.texts(list_key)) {
    static constexpr std::array<std::pair<std::string_view, char>, 4> kWords = {
        {{"mamba", 'M'}, {"attention", '*'}, {"mlp", '-'}, {"moe", 'E'}}};
    std::string blocks;
    for (const std::string& word : *words) {
      const auto at = std::find_if(kWords.begin(), kWords.end(),
                                   [&](const auto& known) { return known.first == word; });
      if (at == kWords.end()) {
        config.complain(list_key, "mamba, attention, mlp or moe for every layer");
        return {};
      }
      blocks += at->second;
    }
    return blocks;
  }
  const std::string blocks = config.text(pattern_key).value_or("");
  if (blocks.find_first_not_of(kBlocks) != std::string::npos) {
    config.complain(pattern_key, "one of M, *, - and E for every layer");
    return {};
  }
  return blocks;
}

struct NemotronSizes {
  Sizes common;
  Mamba2Sizes mamba;
  std::optional<MoeStyle> moe;
  bool mlp_bias = false;
  bool attention_bias = false;
};

MoeStyle read_nemotron_moe(const Config& config) {
  MoeStyle moe;
  moe.gated = false;
  moe.experts = read_experts(config);
  moe.experts_per_token = read_experts_per_token(config, moe.experts);
  moe.expert_width = config.required({"moe_intermediate_size"}, {1, kMostWidth});
  const std::int64_t shared = config.plain({"n_shared_experts"}, 0, {0, 1024});
  if (shared > 0) {
    moe.shared_width =
        shared * config.required({"moe_shared_expert_intermediate_size"}, {1, kMostWidth});
  }
  moe.correction_bias = true;
  moe.latent = config.plain({"moe_latent_size"}, 0, {1, kMostHidden});
  return moe;
}

NemotronSizes read_nemotron(const Config& config, ModelSpec& spec, const std::string& blocks) {
  NemotronSizes sizes;
  SizeRules rules;
  rules.read_width = blocks.find('-') != std::string::npos;
  rules.default_layers = static_cast<std::int64_t>(blocks.size());
  if (const auto head_dim = config.maybe({"attention_head_dim"}, {1, kMostHeadDim})) {
    rules.head_dim = *head_dim;
  }
  sizes.common = read_sizes(config, spec, false, rules);
  if (static_cast<std::size_t>(sizes.common.layers) != blocks.size()) {
    config.complain("num_hidden_layers",
                    fmt::format("{}, as many as the pattern of blocks names", blocks.size()));
  }
  sizes.mamba.heads = config.required({"mamba_num_heads"}, {1, kMostHeads});
  sizes.mamba.head_dim = config.required({"mamba_head_dim"}, {1, kMostHeadDim});
  sizes.mamba.groups = config.required({"n_groups"}, {1, kMostHeads});
  sizes.mamba.state = config.required({"ssm_state_size"}, {1, kMostHeadDim});
  sizes.mamba.kernel = config.class_default({"conv_kernel"}, 4, {1, 64});
  sizes.mamba.conv_bias = config.flag("use_conv_bias", true);
  sizes.mamba.projection_bias = config.flag("use_bias") || config.flag("mamba_proj_bias");
  // The class default of mamba_ssm_cache_dtype.
  sizes.mamba.state_dtype = read_state_dtype(config).value_or(DType::kFloat32);
  sizes.mlp_bias = config.flag("mlp_bias");
  sizes.attention_bias = config.flag("attention_bias");
  if (blocks.find('E') != std::string::npos) {
    sizes.moe = read_nemotron_moe(config);
  }
  return sizes;
}

void add_block(const ModelSpec& spec, LayerSpec& layer, char block, const NemotronSizes& sizes) {
  switch (block) {
    case 'M':
      add_mamba2(spec, layer.tensors, layer.attention, sizes.mamba);
      break;
    case '*':
      add_attention(spec, layer, full_attention(sizes.common, -1),
                    {.qkv_bias = sizes.attention_bias, .output_bias = sizes.attention_bias});
      break;
    case 'E':
      add_moe(spec, layer, *sizes.moe);
      break;
    default:
      add_ffn(spec, layer, FfnKind::kPlain, sizes.common.width, sizes.mlp_bias);
      break;
  }
  add_norm(layer.tensors, "norm.weight", spec.hidden);
}

// Nemotron 3's draft: one layer of the given blocks behind a projection of embedding and hidden
// state.
void add_nemotron_draft(const Config& config, ModelSpec& spec, NemotronSizes sizes) {
  const std::string blocks =
      read_blocks(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type");
  const std::int64_t layers = read_drafts(config);
  if (layers == 0 || blocks.empty()) {
    return;
  }
  if (blocks.find('E') != std::string::npos && !sizes.moe) {
    sizes.moe = read_nemotron_moe(config);
  }
  LayerSpec draft;
  start_draft(spec, draft);
  for (const char block : blocks) {
    add_block(spec, draft, block, sizes);
  }
  finish_drafts(spec, draft, layers, {});
}

}  // namespace

void build_nemotron_h(const Config& config, ModelSpec& spec) {
  spec.attention_module = "mixer";
  spec.ffn_module = "mixer";
  const std::string blocks = read_blocks(config, "hybrid_override_pattern", "layers_block_type");
  if (blocks.empty() || blocks.size() > static_cast<std::size_t>(kMostLayers)) {
    config.complain("hybrid_override_pattern",
                    fmt::format("1 to {} blocks, or layers_block_type", kMostLayers));
    return;
  }
  const NemotronSizes sizes = read_nemotron(config, spec, blocks);
  add_layers(
      spec, static_cast<int>(blocks.size()),
      [&](int i) { return static_cast<int>(blocks[static_cast<std::size_t>(i)]); },
      [&](int block) {
        LayerSpec layer;
        add_block(spec, layer, static_cast<char>(block), sizes);
        return layer;
      });
  add_embedding_and_head(spec);
  add_nemotron_draft(config, spec, sizes);
}

// ---- Granite 4 ---------------------------------------------------------------------------------

void build_granite_hybrid(const Config& config, ModelSpec& spec) {
  const Sizes sizes = read_sizes(config, spec, false);
  Mamba2Sizes mamba;
  mamba.heads = config.required({"mamba_n_heads"}, {1, kMostHeads});
  mamba.head_dim = config.required({"mamba_d_head"}, {1, kMostHeadDim});
  mamba.groups = config.class_default({"mamba_n_groups"}, 1, {1, kMostHeads});
  mamba.state = config.required({"mamba_d_state"}, {1, kMostHeadDim});
  mamba.kernel = config.class_default({"mamba_d_conv"}, 4, {1, 64});
  mamba.conv_bias = config.flag("mamba_conv_bias", true);
  mamba.projection_bias = config.flag("mamba_proj_bias");
  const bool rotary = config.text("position_embedding_type").value_or("nope") == "rope";
  const int rope = rotary ? add_rope(config, spec, {.head_dim = sizes.head_dim}) : -1;
  const std::int64_t shared = config.plain({"shared_intermediate_size"}, 0, {0, kMostWidth});
  std::optional<MoeStyle> moe;
  if (config.plain({"num_local_experts"}, 0, {0, kMostExperts}) > 0) {
    moe = MoeStyle{};
    moe->experts = read_experts(config);
    moe->experts_per_token = read_experts_per_token(config, moe->experts);
    moe->expert_width = sizes.width;
    moe->shared_width = shared;
  } else if (shared == 0) {
    config.complain("shared_intermediate_size", "a width, as there are no experts");
  }
  const std::vector<std::string> types = read_layer_types(config, sizes.layers);
  if (types.empty()) {
    config.complain("layer_types", "mamba or attention for every layer");
  }
  const auto make = [&](int attention) {
    LayerSpec layer;
    if (attention != 0) {
      const bool bias = config.flag("attention_bias");
      add_attention(spec, layer, full_attention(sizes, rope),
                    {.qkv_bias = bias, .output_bias = bias});
    } else {
      add_mamba2(spec, layer.tensors, layer.attention, mamba);
    }
    if (moe) {
      add_moe(spec, layer, *moe);
    } else {
      add_ffn(spec, layer, FfnKind::kGated, shared);
    }
    add_two_norms(spec, layer);
    return layer;
  };
  add_layers(
      spec, sizes.layers,
      [&](int i) {
        return !types.empty() && types[static_cast<std::size_t>(i)] == "attention" ? 1 : 0;
      },
      make);
  add_embedding_and_head(spec);
}

// ---- Falcon H1 ---------------------------------------------------------------------------------

// Attention and Mamba 2 side by side in every layer.
void build_falcon_h1(const Config& config, ModelSpec& spec) {
  const Sizes sizes = read_sizes(config, spec, false);
  Mamba2Sizes mamba;
  mamba.heads = config.required({"mamba_n_heads"}, {1, kMostHeads});
  const std::int64_t inner =
      config.maybe({"mamba_d_ssm"}, {1, kMostWidth})
          .value_or(config.plain({"mamba_expand"}, 2, {1, 64}) * sizes.hidden);
  mamba.head_dim = config.plain({"mamba_d_head"}, inner / mamba.heads, {1, kMostHeadDim});
  if (mamba.head_dim * mamba.heads != inner) {
    config.complain("mamba_n_heads",
                    fmt::format("a number that with mamba_d_head makes {}", inner));
  }
  mamba.groups = config.class_default({"mamba_n_groups"}, 1, {1, kMostHeads});
  mamba.state = config.required({"mamba_d_state"}, {1, kMostHeadDim});
  mamba.kernel = config.class_default({"mamba_d_conv"}, 4, {1, 64});
  mamba.conv_bias = config.flag("mamba_conv_bias", true);
  mamba.projection_bias = config.flag("mamba_proj_bias");
  mamba.norm = config.flag("mamba_rms_norm");
  const int rope = add_rope(config, spec, {.head_dim = sizes.head_dim});
  const auto make = [&](int /*variant*/) {
    LayerSpec layer;
    add_attention(
        spec, layer, full_attention(sizes, rope),
        {.qkv_bias = config.flag("attention_bias"), .output_bias = config.flag("attention_bias")});
    layer.beside.emplace_back();
    add_mamba2(spec, layer.tensors, layer.beside.back(), mamba);
    add_ffn(spec, layer, FfnKind::kGated, sizes.width, config.flag("mlp_bias"));
    add_norm(layer.tensors, "input_layernorm.weight", spec.hidden);
    add_norm(layer.tensors, "pre_ff_layernorm.weight", spec.hidden);
    return layer;
  };
  add_layers(
      spec, sizes.layers, [](int /*i*/) { return 0; }, make);
  add_embedding_and_head(spec);
}

// ---- Jamba -------------------------------------------------------------------------------------

void build_jamba(const Config& config, ModelSpec& spec) {
  const Sizes sizes = read_sizes(config, spec, false);
  Mamba1Sizes mamba;
  mamba.inner = sizes.hidden * config.class_default({"mamba_expand"}, 2, {1, 64});
  mamba.state = config.class_default({"mamba_d_state"}, 16, {1, kMostHeadDim});
  mamba.kernel = config.class_default({"mamba_d_conv"}, 4, {1, 64});
  mamba.step_rank =
      config.class_default({"mamba_dt_rank"}, div_ceil(sizes.hidden, 16), {1, kMostHidden});
  mamba.conv_bias = config.flag("mamba_conv_bias", true);
  mamba.projection_bias = config.flag("mamba_proj_bias");
  std::optional<MoeStyle> moe;
  if (config.plain({"num_experts"}, 16, {1, kMostExperts}) > 1) {
    moe = MoeStyle{};
    moe->experts = read_experts(config);
    moe->experts_per_token = read_experts_per_token(config, moe->experts);
    moe->expert_width = sizes.width;
  }
  const Range any{0, kMostLayers};
  const Range period{1, kMostLayers};
  const std::int64_t attention_period = config.class_default({"attn_layer_period"}, 8, period);
  const std::int64_t attention_offset = config.class_default({"attn_layer_offset"}, 4, any);
  const std::int64_t expert_period = config.class_default({"expert_layer_period"}, 2, period);
  const std::int64_t expert_offset = config.class_default({"expert_layer_offset"}, 1, any);
  const auto make = [&](int variant) {
    LayerSpec layer;
    if ((variant & 1) != 0) {
      add_attention(spec, layer, full_attention(sizes, -1));
    } else {
      add_mamba1(spec, layer.tensors, layer.attention, mamba);
    }
    if ((variant & 2) != 0) {
      add_moe(spec, layer, *moe);
    } else {
      add_ffn(spec, layer, FfnKind::kGated, sizes.width);
    }
    add_norm(layer.tensors, "input_layernorm.weight", spec.hidden);
    add_norm(layer.tensors, "pre_ff_layernorm.weight", spec.hidden);
    return layer;
  };
  add_layers(
      spec, sizes.layers,
      [&](int i) {
        const bool attention = i % attention_period == attention_offset;
        const bool experts = moe && i % expert_period == expert_offset;
        return (attention ? 1 : 0) + (experts ? 2 : 0);
      },
      make);
  add_embedding_and_head(spec);
}

}  // namespace oomcast::models
