// Qwen3-Next and Qwen3.5 to 3.8: three layers of gated delta nets for each layer of full attention;
// the attention's query projection has a second half that gates its output.
#include "models/families/builders.hpp"
#include "models/families/layer_parts.hpp"

namespace oomcast::models {
namespace {

struct DeltaSizes {
  std::int64_t key_heads = 1;
  std::int64_t value_heads = 1;
  std::int64_t key_dim = 1;
  std::int64_t value_dim = 1;
  std::int64_t kernel = 4;
};

DeltaSizes read_delta(const Config& config) {
  DeltaSizes out;
  out.key_heads = config.required({"linear_num_key_heads"}, {1, kMostHeads});
  out.value_heads = config.required({"linear_num_value_heads"}, {1, kMostHeads});
  out.key_dim = config.required({"linear_key_head_dim"}, {1, kMostHeadDim});
  out.value_dim = config.required({"linear_value_head_dim"}, {1, kMostHeadDim});
  out.kernel = config.required({"linear_conv_kernel_dim"}, {1, 64});
  return out;
}

void add_delta_net(const ModelSpec& spec, LayerSpec& layer, const DeltaSizes& sizes,
                   std::optional<DType> state_dtype) {
  layer.attention.kind = AttentionKind::kGatedDeltaNet;
  layer.attention.heads = sizes.value_heads;
  StateSpec& state = layer.attention.state;
  state.inner = 2 * sizes.key_heads * sizes.key_dim + sizes.value_heads * sizes.value_dim;
  state.kernel = sizes.kernel;
  state.heads = sizes.value_heads;
  state.head_rows = sizes.value_dim;
  state.head_columns = sizes.key_dim;
  state.recurrent_dtype = state_dtype;
  const Extent key{sizes.key_heads, sizes.key_dim, Split::kEven};
  const Extent value{sizes.value_heads, sizes.value_dim, Split::kEven};
  const Extent heads{sizes.value_heads, 1, Split::kEven};
  std::vector<TensorSpec>& tensors = layer.tensors;
  add_linear(tensors, {.weight = "linear_attn.conv1d.weight",
                       .bias = {},
                       .rows = {key, key, value},
                       .columns = {.size = sizes.kernel},
                       .quantisable = false});
  add_linear(tensors, {.weight = "linear_attn.in_proj_qkvz.weight",
                       .bias = {},
                       .rows = {key, key, value, value},
                       .columns = {.size = spec.hidden}});
  add_linear(tensors, {.weight = "linear_attn.in_proj_ba.weight",
                       .bias = {},
                       .rows = {heads, heads},
                       .columns = {.size = spec.hidden},
                       .quantisable = false});
  for (const std::string_view name : {"linear_attn.dt_bias", "linear_attn.A_log"}) {
    TensorSpec vector;
    vector.name = name;
    vector.rows = {heads};
    vector.element = name == "linear_attn.A_log" ? Element::kFloat32 : Element::kModel;
    tensors.push_back(vector);
  }
  add_vector(tensors, "linear_attn.norm.weight", sizes.value_dim);
  add_linear(tensors, {.weight = "linear_attn.out_proj.weight",
                       .bias = {},
                       .rows = {{.size = spec.hidden}},
                       .columns = value});
}

// layer_types, or every full_attention_interval-th layer is full.
std::vector<bool> read_full_layers(const Config& config, int layers) {
  std::vector<bool> full;
  const std::vector<std::string> types = read_layer_types(config, layers);
  const std::int64_t interval =
      types.empty() ? config.class_default({"full_attention_interval"}, 4, {1, kMostLayers}) : 1;
  for (int i = 0; i < layers; ++i) {
    full.push_back(types.empty() ? (i + 1) % interval == 0
                                 : types[static_cast<std::size_t>(i)] == "full_attention");
  }
  return full;
}

std::optional<MoeStyle> read_moe(const Config& config) {
  if (!config.has("num_experts")) {
    return std::nullopt;
  }
  MoeStyle moe;
  moe.experts = read_experts(config);
  moe.experts_per_token = read_experts_per_token(config, moe.experts);
  moe.expert_width = config.required({"moe_intermediate_size"}, {1, kMostWidth});
  moe.shared_width = config.plain({"shared_expert_intermediate_size"}, 0, {0, kMostWidth});
  moe.shared_gate = moe.shared_width > 0;
  return moe;
}

}  // namespace

void build_qwen3_next(const Config& config, ModelSpec& spec) {
  const std::optional<MoeStyle> moe = read_moe(config);
  SizeRules rules;
  rules.head_dim = 256;
  rules.default_width = moe ? moe->expert_width : 0;
  const Sizes sizes = read_sizes(config, spec, false, rules);
  const DeltaSizes delta = read_delta(config);
  std::optional<DType> state_dtype;
  if (const auto text = config.text("mamba_ssm_dtype")) {
    state_dtype = parse_dtype(*text);
    if (!state_dtype) {
      config.complain("mamba_ssm_dtype", "a dtype, e.g. \"float32\"");
    }
  }
  RopeRules rope_rules;
  rope_rules.head_dim = sizes.head_dim;
  rope_rules.partial_default = 0.25;
  const int rope = add_rope(config, spec, rope_rules);
  const std::vector<bool> full = read_full_layers(config, sizes.layers);
  std::vector<bool> moe_layers = read_moe_layers(config, sizes.layers);

  const auto make = [&](int variant) {
    LayerSpec layer;
    if ((variant & 1) != 0) {
      add_attention(spec, layer, full_attention(sizes, rope),
                    {.qkv_bias = config.flag("attention_bias"),
                     .qk_norm = QkNorm::kPerHead,
                     .query_gate = config.flag("attn_output_gate", true)});
    } else {
      add_delta_net(spec, layer, delta, state_dtype);
    }
    if ((variant & 2) != 0) {
      add_moe(spec, layer, *moe);
    } else {
      add_ffn(spec, layer, FfnKind::kGated, sizes.width);
    }
    add_two_norms(spec, layer);
    return layer;
  };
  add_layers(
      spec, sizes.layers,
      [&](int i) {
        const auto at = static_cast<std::size_t>(i);
        return (full[at] ? 1 : 0) + (moe && moe_layers[at] ? 2 : 0);
      },
      make);
  add_embedding_and_head(spec);
  // Qwen3-Next has one draft layer, which its file does not name.
  const std::int64_t drafts = spec.family == "qwen3_next" ? 1 : read_drafts(config);
  if (drafts > 0) {
    LayerSpec draft = make(1 + (moe ? 2 : 0));
    start_draft(spec, draft);
    finish_drafts(spec, std::move(draft), drafts, {});
  }
}

}  // namespace oomcast::models
