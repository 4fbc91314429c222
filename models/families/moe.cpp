#include "models/families/moe.hpp"

namespace oomcast::models {

std::int64_t read_experts(const Config& config) {
  return config.required(
      {"n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"},
      {1, kMostExperts});
}

std::int64_t read_experts_per_token(const Config& config, std::int64_t experts) {
  return config.required({"num_experts_per_tok", "num_experts_per_token", "experts_per_token",
                          "moe_topk", "moe_top_k", "moe_k", "top_k_experts"},
                         {1, experts});
}

namespace {

void add_router(const ModelSpec& spec, std::vector<TensorSpec>& tensors, const MoeStyle& style) {
  const std::int64_t choices = style.experts + style.zero_experts;
  add_linear(tensors, {.weight = "mlp.gate.weight",
                       .bias = "mlp.gate.bias",
                       .rows = {{.size = choices}},
                       .columns = {.size = spec.hidden},
                       .has_bias = style.router_bias,
                       .quantisable = false});
  if (style.router_fp32) {
    tensors.back().element = Element::kFloat32;
  }
  if (style.correction_bias) {
    add_vector(tensors, "mlp.gate.e_score_correction_bias", choices, Element::kFloat32);
  }
}

void add_shared_experts(const ModelSpec& spec, std::vector<TensorSpec>& tensors,
                        const MoeStyle& style) {
  if (style.shared_width > 0) {
    std::vector<Extent> up(style.gated ? 2 : 1, Extent{style.shared_width, 1, Split::kSharedWidth});
    add_linear(tensors, {.weight = style.gated ? "mlp.shared_experts.gate_up_proj.weight"
                                               : "mlp.shared_experts.up_proj.weight",
                         .bias = {},
                         .rows = std::move(up),
                         .columns = {.size = spec.hidden}});
    add_linear(tensors, {.weight = "mlp.shared_experts.down_proj.weight",
                         .bias = {},
                         .rows = {{.size = spec.hidden}},
                         .columns = {style.shared_width, 1, Split::kSharedWidth}});
  }
  if (style.shared_gate) {
    add_linear(tensors, {.weight = "mlp.shared_expert_gate.weight",
                         .bias = {},
                         .rows = {{.size = 1}},
                         .columns = {.size = spec.hidden},
                         .quantisable = false});
  }
}

// Every rank projects all of its tokens.
void add_latent(const ModelSpec& spec, std::vector<TensorSpec>& tensors, const MoeStyle& style) {
  add_linear(tensors, {.weight = "mlp.fc1_latent_proj.weight",
                       .bias = {},
                       .rows = {{.size = style.latent}},
                       .columns = {.size = spec.hidden},
                       .quantisable = style.latent_quantisable});
  add_linear(tensors, {.weight = "mlp.fc2_latent_proj.weight",
                       .bias = {},
                       .rows = {{.size = spec.hidden}},
                       .columns = {.size = style.latent},
                       .quantisable = style.latent_quantisable});
  if (style.latent_norm) {
    add_norm(tensors, "mlp.latent_norm.weight", style.latent);
  }
}

}  // namespace

void add_moe(const ModelSpec& spec, LayerSpec& layer, const MoeStyle& style) {
  add_router(spec, layer.tensors, style);
  add_shared_experts(spec, layer.tensors, style);
  if (style.latent > 0) {
    add_latent(spec, layer.tensors, style);
  }
  add_routed_experts(spec, layer, style);
}

void add_routed_experts(const ModelSpec& spec, LayerSpec& layer, const MoeStyle& style) {
  layer.ffn.kind = FfnKind::kMoe;
  layer.ffn.width = 0;
  layer.ffn.experts = style.experts;
  layer.ffn.experts_per_token = style.experts_per_token;
  layer.ffn.expert_width = style.expert_width;
  layer.ffn.shared_width = style.shared_width;
  layer.ffn.latent = style.latent;
  layer.ffn.gated = style.gated;
  const Extent experts{style.experts, 1, Split::kExperts};
  const Extent width{style.expert_width, 1, Split::kExpertWidth};
  const Extent seen{.size = style.latent > 0 ? style.latent : spec.hidden};
  const std::vector<Extent> up(style.gated ? 2 : 1, width);
  const auto add_experts = [&](std::string_view name, std::vector<Extent> rows, Extent columns,
                               bool quantisable) {
    TensorSpec tensor;
    tensor.name = name;
    tensor.experts = experts;
    tensor.rows = std::move(rows);
    tensor.columns = columns;
    tensor.quantisable = quantisable;
    layer.tensors.push_back(std::move(tensor));
  };
  add_experts("mlp.experts.w13.weight", up, seen, true);
  add_experts("mlp.experts.w2.weight", {seen}, width, true);
  if (style.expert_bias) {
    add_experts("mlp.experts.w13.bias", up, {}, false);
    add_experts("mlp.experts.w2.bias", {seen}, {}, false);
  }
}

std::vector<bool> read_flags(const Config& config, std::string_view key, int layers) {
  std::vector<bool> flags(static_cast<std::size_t>(layers), false);
  const auto list = config.integers(key, {0, 1});
  if (!config.has(key) || (list && list->size() != flags.size())) {
    config.complain(key, fmt::format("{} zeros and ones, one a layer", layers));
  } else if (list) {
    std::transform(list->begin(), list->end(), flags.begin(),
                   [](std::int64_t entry) { return entry == 1; });
  }
  return flags;
}

std::vector<bool> read_moe_layers(const Config& config, int layers) {
  const auto count = static_cast<std::size_t>(layers);
  std::vector<bool> moe(count, true);
  const std::int64_t dense_first = config.plain({"first_k_dense_replace"}, 0, {0, kMostLayers});
  if (const Json* list = config.find("moe_layer_freq"); list != nullptr && list->is_array()) {
    return read_flags(config, "moe_layer_freq", layers);
  }
  const std::int64_t step =
      config.plain({"decoder_sparse_step", "moe_layer_freq"}, 1, {1, kMostLayers});
  for (int i = 0; i < layers; ++i) {
    const bool by_step = config.has("moe_layer_freq") ? i % step == 0 : (i + 1) % step == 0;
    moe[static_cast<std::size_t>(i)] = i >= dense_first && by_step;
  }
  for (const std::int64_t dense :
       config.integers("mlp_only_layers", {0, kMostLayers}).value_or(std::vector<std::int64_t>{})) {
    if (dense < layers) {
      moe[static_cast<std::size_t>(dense)] = false;
    }
  }
  if (const auto types = config.texts("mlp_layer_types")) {
    if (types->size() != count) {
      config.complain("mlp_layer_types", fmt::format("{} entries, one a layer", layers));
      return moe;
    }
    for (std::size_t i = 0; i < count; ++i) {
      moe[i] = (*types)[i] != "dense";
    }
  }
  return moe;
}

}  // namespace oomcast::models
