// Kimi-Linear and the language model of Kimi K3: layers of Kimi delta attention (vLLM
// kda.py), every few layers latent attention without rotary embedding.
#include "models/families/builders.hpp"
#include "models/families/layer_parts.hpp"
#include "models/families/mla.hpp"

namespace oomcast::models {
namespace {

struct KdaSizes {
  std::int64_t heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t kernel = 4;
  bool full_rank_gate = false;
  std::vector<bool> linear;  // of each layer
};

KdaSizes read_kda(const Config& config, int layers) {
  KdaSizes out;
  out.linear.assign(static_cast<std::size_t>(layers), true);
  const Json* block = config.find("linear_attn_config");
  if (block == nullptr || !block->is_object()) {
    config.complain("linear_attn_config", "an object with full_attn_layers, head_dim, num_heads");
    return out;
  }
  const JsonView view(*block, config.source(), "linear_attn_config", config.problems());
  const auto read = [&](std::string_view key, std::int64_t most, std::int64_t fallback) {
    if (!view.has(key) && fallback == 0) {
      view.complain(key, "the key " + std::string(key));
    }
    return view.integer(key, 1, most).value_or(std::max<std::int64_t>(fallback, 1));
  };
  out.heads = read("num_heads", kMostHeads, 0);
  out.head_dim = read("head_dim", kMostHeadDim, 0);
  out.kernel = read("short_conv_kernel_size", 64, 4);
  out.full_rank_gate = view.boolean("use_full_rank_gate").value_or(false);
  const Json* full = view.find("full_attn_layers");
  if (full == nullptr || !full->is_array()) {
    view.complain("full_attn_layers", "a list of layer numbers, counted from 1");
    return out;
  }
  for (const Json& number : *full) {
    if (!number.is_number_integer() || number.get<std::int64_t>() < 1 ||
        number.get<std::int64_t>() > layers) {
      view.complain("full_attn_layers", fmt::format("layer numbers from 1 to {}", layers));
      break;
    }
    out.linear[static_cast<std::size_t>(number.get<std::int64_t>() - 1)] = false;
  }
  return out;
}

void add_low_rank(const ModelSpec& spec, std::vector<TensorSpec>& tensors, std::string_view into,
                  std::string_view out, std::int64_t rank, const Extent& inner) {
  add_linear(
      tensors,
      {.weight = into, .bias = {}, .rows = {{.size = rank}}, .columns = {.size = spec.hidden}});
  add_linear(tensors, {.weight = out, .bias = {}, .rows = {inner}, .columns = {.size = rank}});
}

void add_split_fp32(std::vector<TensorSpec>& tensors, std::string_view name, Extent rows) {
  TensorSpec vector;
  vector.name = name;
  vector.rows = {rows};
  vector.element = Element::kFloat32;
  tensors.push_back(std::move(vector));
}

void add_kda(const ModelSpec& spec, LayerSpec& layer, const KdaSizes& sizes) {
  const std::int64_t width = sizes.heads * sizes.head_dim;
  layer.attention.kind = AttentionKind::kKimiDelta;
  layer.attention.heads = sizes.heads;
  layer.attention.state = {.inner = 3 * width,
                           .kernel = sizes.kernel,
                           .heads = sizes.heads,
                           .head_rows = sizes.head_dim,
                           .head_columns = sizes.head_dim,
                           .recurrent_dtype = DType::kFloat32};
  const Extent inner{sizes.heads, sizes.head_dim, Split::kEven};
  const Extent heads{sizes.heads, 1, Split::kEven};
  std::vector<TensorSpec>& tensors = layer.tensors;
  for (const std::string_view name :
       {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}) {
    add_linear(tensors,
               {.weight = name, .bias = {}, .rows = {inner}, .columns = {.size = spec.hidden}});
  }
  add_low_rank(spec, tensors, "self_attn.f_a_proj.weight", "self_attn.f_b_proj.weight",
               sizes.head_dim, inner);
  add_split_fp32(tensors, "self_attn.dt_bias", inner);
  add_linear(tensors, {.weight = "self_attn.b_proj.weight",
                       .bias = {},
                       .rows = {heads},
                       .columns = {.size = spec.hidden}});
  for (const std::string_view name :
       {"self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight", "self_attn.v_conv1d.weight"}) {
    add_linear(tensors, {.weight = name,
                         .bias = {},
                         .rows = {inner},
                         .columns = {.size = sizes.kernel},
                         .quantisable = false});
    tensors.back().element = Element::kFloat32;
  }
  add_split_fp32(tensors, "self_attn.A_log", heads);
  if (sizes.full_rank_gate) {
    add_linear(tensors, {.weight = "self_attn.g_proj.weight",
                         .bias = {},
                         .rows = {inner},
                         .columns = {.size = spec.hidden}});
  } else {
    add_low_rank(spec, tensors, "self_attn.g_a_proj.weight", "self_attn.g_b_proj.weight",
                 sizes.head_dim, inner);
  }
  add_norm(tensors, "self_attn.o_norm.weight", sizes.head_dim);
  add_linear(tensors, {.weight = "self_attn.o_proj.weight",
                       .bias = {},
                       .rows = {{.size = spec.hidden}},
                       .columns = inner});
}

MoeStyle read_kimi_moe(const Config& config) {
  MoeStyle moe;
  moe.experts = read_experts(config);
  moe.experts_per_token = read_experts_per_token(config, moe.experts);
  moe.expert_width = config.required({"moe_intermediate_size"}, {1, kMostWidth});
  moe.shared_width = moe.expert_width * config.plain({"num_shared_experts"}, 0, {0, 1024});
  moe.correction_bias = true;
  moe.latent = config.plain({"routed_expert_hidden_size"}, 0, {1, kMostHidden});
  moe.latent_quantisable = false;
  moe.latent_norm = moe.latent > 0 && config.flag("latent_moe_use_norm");
  return moe;
}

}  // namespace

void build_kimi_linear(const Config& config, ModelSpec& spec) {
  spec.ffn_module = "block_sparse_moe";
  spec.hidden = config.required({"hidden_size"}, {1, kMostHidden});
  spec.vocabulary = config.required({"vocab_size"}, {1, kMostVocabulary});
  spec.tie_word_embeddings = config.class_default("tie_word_embeddings", false);
  const int layers = static_cast<int>(config.required({"num_hidden_layers"}, {1, kMostLayers}));
  MlaSizes mla = read_mla(config);
  mla.mla.v_dim = config.required({"v_head_dim"}, {1, kMostHeadDim});
  const KdaSizes kda = read_kda(config, layers);
  const MoeStyle moe = read_kimi_moe(config);
  const std::vector<bool> moe_layers = read_moe_layers(config, layers);
  const std::int64_t width = config.required({"intermediate_size"}, {1, kMostWidth});
  const int rope = config.flag("mla_use_nope", true)
                       ? -1
                       : add_rope(config, spec, {.head_dim = mla.mla.rope_dim});
  const std::string_view gate = config.flag("mla_use_output_gate") ? "self_attn.g_proj.weight" : "";
  const bool residuals = config.has("attn_res_block_size");
  const auto make = [&](int variant) {
    LayerSpec layer;
    if ((variant & 1) != 0) {
      add_kda(spec, layer, kda);
    } else {
      add_mla(spec, layer, mla.heads, mla.mla, rope, gate);
    }
    if ((variant & 2) != 0) {
      add_moe(spec, layer, moe);
    } else {
      add_ffn(spec, layer, FfnKind::kGated, width);
    }
    add_two_norms(spec, layer);
    if (residuals) {
      // Attention over the outputs of earlier blocks chooses each sublayer's input (Kimi K3).
      for (const std::string_view name :
           {"self_attention_res_norm.weight", "self_attention_res_proj.weight",
            "mlp_res_norm.weight", "mlp_res_proj.weight"}) {
        add_vector(layer.tensors, name, spec.hidden);
      }
    }
    return layer;
  };
  add_layers(
      spec, layers,
      [&](int i) {
        const auto at = static_cast<std::size_t>(i);
        return (kda.linear[at] ? 1 : 0) + (moe_layers[at] ? 2 : 0);
      },
      make);
  add_embedding_and_head(spec);
  if (residuals) {
    for (const std::string_view name :
         {"output_attn_res_norm.weight", "output_attn_res_proj.weight"}) {
      add_vector(spec.after, name, spec.hidden);
      spec.after.back().place = Place::kLastStage;
    }
  }
}

}  // namespace oomcast::models
