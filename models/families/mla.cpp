// Multi-head latent attention: DeepSeek V2, V3, R1 and V3.2 (sparse, with an indexer), Kimi K2, GLM
// 4.7-Flash and GLM-5, MiniCPM 3.
#include "models/families/builders.hpp"

namespace oomcast::models {
namespace {

struct MlaSizes {
  std::int64_t heads = 1;
  MlaSpec mla;
};

MlaSizes read_mla(const Config& config) {
  MlaSizes out;
  out.heads = config.required({"num_attention_heads"}, {1, kMostHeads});
  const Range rank{1, kMostWidth};
  out.mla.q_lora_rank = config.plain({"q_lora_rank"}, 0, rank);
  out.mla.kv_lora_rank = config.required({"kv_lora_rank"}, rank);
  out.mla.nope_dim = config.required({"qk_nope_head_dim"}, {1, kMostHeadDim});
  out.mla.rope_dim = config.required({"qk_rope_head_dim"}, {1, kMostHeadDim});
  return out;
}

void add_indexer(const ModelSpec& spec, std::vector<TensorSpec>& tensors, const MlaSpec& mla) {
  const std::int64_t width = mla.indexer_heads * mla.indexer_dim;
  // Every rank indexes all tokens: nothing is divided.
  add_linear(tensors, {.weight = "self_attn.indexer.wq_b.weight",
                       .bias = {},
                       .rows = {{.size = width}},
                       .columns = {.size = mla.q_lora_rank}});
  add_linear(tensors, {.weight = "self_attn.indexer.wk.weight",
                       .bias = {},
                       .rows = {{.size = mla.indexer_dim}},
                       .columns = {.size = spec.hidden}});
  add_norm(tensors, "self_attn.indexer.k_norm.weight", mla.indexer_dim,
           "self_attn.indexer.k_norm.bias");
  add_linear(tensors, {.weight = "self_attn.indexer.weights_proj.weight",
                       .bias = {},
                       .rows = {{.size = mla.indexer_heads}},
                       .columns = {.size = spec.hidden},
                       .quantisable = false});
}

void add_mla(const ModelSpec& spec, LayerSpec& layer, std::int64_t heads, const MlaSpec& mla,
             int rope) {
  AttentionSpec& attention = layer.attention;
  attention.kind = AttentionKind::kMla;
  attention.heads = heads;
  attention.kv_heads = 1;
  attention.head_dim = mla.nope_dim + mla.rope_dim;
  attention.v_head_dim = mla.v_dim;
  attention.rope = rope;
  attention.mla = mla;
  std::vector<TensorSpec>& tensors = layer.tensors;
  const Extent latent{.size = mla.kv_lora_rank + mla.rope_dim};
  const Extent query{heads, mla.nope_dim + mla.rope_dim, Split::kEven};
  if (mla.q_lora_rank > 0) {
    add_linear(tensors, {.weight = "self_attn.fused_qkv_a_proj.weight",
                         .bias = {},
                         .rows = {{.size = mla.q_lora_rank}, latent},
                         .columns = {.size = spec.hidden}});
    add_norm(tensors, "self_attn.q_a_layernorm.weight", mla.q_lora_rank);
    add_linear(tensors, {.weight = "self_attn.q_b_proj.weight",
                         .bias = {},
                         .rows = {query},
                         .columns = {.size = mla.q_lora_rank}});
  } else {
    add_linear(tensors, {.weight = "self_attn.kv_a_proj_with_mqa.weight",
                         .bias = {},
                         .rows = {latent},
                         .columns = {.size = spec.hidden}});
    add_linear(tensors, {.weight = "self_attn.q_proj.weight",
                         .bias = {},
                         .rows = {query},
                         .columns = {.size = spec.hidden}});
  }
  add_norm(tensors, "self_attn.kv_a_layernorm.weight", mla.kv_lora_rank);
  add_linear(tensors, {.weight = "self_attn.kv_b_proj.weight",
                       .bias = {},
                       .rows = {{heads, mla.nope_dim + mla.v_dim, Split::kEven}},
                       .columns = {.size = mla.kv_lora_rank}});
  tensors.back().copied_in_16_bits = true;
  add_linear(tensors, {.weight = "self_attn.o_proj.weight",
                       .bias = {},
                       .rows = {{.size = spec.hidden}},
                       .columns = {heads, mla.v_dim, Split::kEven}});
  add_rope_table(tensors, spec, rope);
  if (mla.indexer_heads > 0) {
    add_indexer(spec, tensors, mla);
  }
  add_attention_scales(tensors);
}

// indexer_types: "full" layers have an indexer, "shared" ones use the last full one's choice.
std::vector<bool> read_indexer_layers(const Config& config, int layers) {
  std::vector<bool> full(static_cast<std::size_t>(layers), config.has("index_n_heads"));
  const auto types = config.texts("indexer_types");
  if (types && types->size() != full.size()) {
    config.complain("indexer_types", fmt::format("{} entries, one a layer", layers));
  } else if (types) {
    for (std::size_t i = 0; i < full.size(); ++i) {
      full[i] = (*types)[i] == "full";
    }
  }
  return full;
}

void read_common(const Config& config, ModelSpec& spec, int& layers) {
  spec.hidden = config.required({"hidden_size"}, {1, kMostHidden});
  spec.vocabulary = config.required({"vocab_size"}, {1, kMostVocabulary});
  layers = static_cast<int>(config.required({"num_hidden_layers", "num_layers"}, {1, kMostLayers}));
}

void add_norms(const ModelSpec& spec, LayerSpec& layer) {
  add_norm(layer.tensors, "input_layernorm.weight", spec.hidden);
  add_norm(layer.tensors, "post_attention_layernorm.weight", spec.hidden);
}

}  // namespace

void build_deepseek_mla(const Config& config, ModelSpec& spec) {
  int layers = 1;
  read_common(config, spec, layers);
  spec.tie_word_embeddings = config.class_default("tie_word_embeddings", false);
  MlaSizes sizes = read_mla(config);
  sizes.mla.v_dim = config.required({"v_head_dim"}, {1, kMostHeadDim});
  MlaSpec indexed = sizes.mla;
  indexed.indexer_heads = config.plain({"index_n_heads"}, 0, {1, kMostHeads});
  indexed.indexer_dim = config.plain({"index_head_dim"}, 128, {1, kMostHeadDim});
  const int rope = add_rope(config, spec, {.head_dim = sizes.mla.rope_dim});

  MoeStyle moe;
  moe.experts = read_experts(config);
  moe.experts_per_token = read_experts_per_token(config, moe.experts);
  moe.expert_width = config.required({"moe_intermediate_size"}, {1, kMostWidth});
  moe.shared_width = moe.expert_width * config.plain({"n_shared_experts"}, 0, {0, 1024});
  // DeepSeek V2 routes without it; GLM does not name the method.
  moe.correction_bias = config.text("topk_method").value_or("noaux_tc") == "noaux_tc";
  const std::int64_t width = config.required({"intermediate_size"}, {1, kMostWidth});
  const std::vector<bool> moe_layers = read_moe_layers(config, layers);
  const std::vector<bool> indexer_layers = read_indexer_layers(config, layers);

  const auto make = [&](int variant) {
    LayerSpec layer;
    add_mla(spec, layer, sizes.heads, (variant & 2) != 0 ? indexed : sizes.mla, rope);
    if ((variant & 1) != 0) {
      add_moe(spec, layer, moe);
    } else {
      add_ffn(spec, layer, FfnKind::kGated, width);
    }
    add_norms(spec, layer);
    return layer;
  };
  add_layers(
      spec, layers,
      [&](int i) {
        const auto at = static_cast<std::size_t>(i);
        return (moe_layers[at] ? 1 : 0) + (indexer_layers[at] ? 2 : 0);
      },
      make);
  add_embedding_and_head(spec);
  if (config.plain({"num_nextn_predict_layers"}, 0, {0, kMostLayers}) > 0) {
    spec.notes.push_back(
        "the multi-token-prediction layer is loaded only for speculation and not "
        "counted");
  }
}

void build_minicpm3(const Config& config, ModelSpec& spec) {
  int layers = 1;
  read_common(config, spec, layers);
  spec.tie_word_embeddings = config.class_default("tie_word_embeddings", true);
  MlaSizes sizes = read_mla(config);
  sizes.mla.v_dim = config.plain({"v_head_dim"}, spec.hidden / sizes.heads, {1, kMostHeadDim});
  const int rope = add_rope(config, spec, {.head_dim = sizes.mla.rope_dim});
  const std::int64_t width = config.required({"intermediate_size"}, {1, kMostWidth});
  const auto make = [&](int /*variant*/) {
    LayerSpec layer;
    add_mla(spec, layer, sizes.heads, sizes.mla, rope);
    add_ffn(spec, layer, FfnKind::kGated, width);
    add_norms(spec, layer);
    return layer;
  };
  add_layers(
      spec, layers, [](int /*i*/) { return 0; }, make);
  add_embedding_and_head(spec);
}

}  // namespace oomcast::models
