// Multi-head latent attention: DeepSeek V2, V3, R1 and V3.2 (sparse, with an indexer), Kimi K2, GLM
// 4.7-Flash and GLM-5, MiniCPM 3.
#include "models/families/mla.hpp"

#include "models/families/builders.hpp"
#include "models/families/layer_parts.hpp"

namespace oomcast::models {

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

namespace {

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

// vLLM's SparseMLAIndexGroup: the choice as places in the cache, and how many each row has.
void add_choice_places(std::vector<TensorSpec>& tensors, std::int64_t chosen) {
  for (const auto& [name, width] : {std::pair{"self_attn.physical_topk_indices", chosen},
                                    std::pair{"self_attn.valid_topk_counts", std::int64_t{1}}}) {
    TensorSpec buffer;
    buffer.name = name;
    buffer.rows = {{1, width, Split::kChoiceRows}};
    buffer.element = Element::kInt32;
    buffer.leaf = WeightLeaf::kBuffers;
    buffer.parameter = false;
    tensors.push_back(std::move(buffer));
  }
}

}  // namespace

void add_choice_buffer(ModelSpec& spec, std::int64_t chosen) {
  TensorSpec buffer;
  buffer.name = "topk_indices_buffer";
  buffer.rows = {{1, chosen, Split::kStepTokens}};
  buffer.element = Element::kInt32;
  buffer.leaf = WeightLeaf::kBuffers;
  buffer.parameter = false;
  buffer.place = Place::kEveryStage;
  spec.before.push_back(std::move(buffer));
}

void add_mla(const ModelSpec& spec, LayerSpec& layer, std::int64_t heads, const MlaSpec& mla,
             int rope, std::string_view gate, bool joins) {
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
  const auto down = [&](std::string_view name, Extent rows) {
    add_linear(tensors,
               {.weight = name, .bias = {}, .rows = {rows}, .columns = {.size = spec.hidden}});
  };
  if (mla.q_lora_rank > 0 && !joins) {
    down("self_attn.q_a_proj.weight", {.size = mla.q_lora_rank});
    add_norm(tensors, "self_attn.q_a_layernorm.weight", mla.q_lora_rank);
    add_linear(tensors, {.weight = "self_attn.q_b_proj.weight",
                         .bias = {},
                         .rows = {query},
                         .columns = {.size = mla.q_lora_rank}});
    down("self_attn.kv_a_proj_with_mqa.weight", latent);
  } else if (mla.q_lora_rank > 0) {
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
    down("self_attn.kv_a_proj_with_mqa.weight", latent);
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
  if (!gate.empty()) {
    add_linear(tensors, {.weight = gate,
                         .bias = {},
                         .rows = {{heads, mla.v_dim, Split::kEven}},
                         .columns = {.size = spec.hidden}});
  }
  add_rope_table(tensors, spec, rope);
  if (mla.indexer_heads > 0) {
    add_indexer(spec, tensors, mla);
  }
  add_attention_scales(tensors);
}

namespace {

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
  layers = read_layer_count(config);
}

}  // namespace

void build_deepseek_mla(const Config& config, ModelSpec& spec) {
  if (!config.flag("use_mla", true)) {
    build_deepseek_moe(config, spec);
    return;
  }
  int layers = 1;
  read_common(config, spec, layers);
  spec.tie_word_embeddings = config.class_default("tie_word_embeddings", false);
  MlaSizes sizes = read_mla(config);
  sizes.mla.v_dim = config.required({"v_head_dim"}, {1, kMostHeadDim});
  MlaSpec indexed = sizes.mla;
  indexed.indexer_heads = config.plain({"index_n_heads"}, 0, {1, kMostHeads});
  indexed.indexer_dim = config.plain({"index_head_dim"}, 128, {1, kMostHeadDim});
  const int rope = add_rope(config, spec, {.head_dim = sizes.mla.rope_dim, .deepseek_yarn = true});
  const std::int64_t chosen = config.plain({"index_topk"}, 2048, {1, kMostPosition});
  // Attention rotates neighbours, the indexer halves unless it is told otherwise.
  int indexer_rope = -1;
  if (indexed.indexer_heads > 0 && !config.flag("indexer_rope_interleave", false)) {
    RopeSpec halves = spec.ropes.at(static_cast<std::size_t>(rope));
    halves.of_indexer = true;
    indexer_rope = add_rope(spec, halves);
  }

  MoeStyle moe;
  moe.experts = read_experts(config);
  moe.experts_per_token = read_experts_per_token(config, moe.experts);
  moe.expert_width = config.required({"moe_intermediate_size"}, {1, kMostWidth});
  moe.shared_width = moe.expert_width * config.plain({"n_shared_experts"}, 0, {0, 1024});
  // DeepSeek V2 routes without it; GLM does not name the method.
  moe.correction_bias = config.text("topk_method").value_or("noaux_tc") == "noaux_tc";
  moe.router_fp32 = spec.family == "glm4_moe_lite";  // as in GLM-4.5
  const std::int64_t width = config.required({"intermediate_size"}, {1, kMostWidth});
  const std::vector<bool> moe_layers = read_moe_layers(config, layers);
  const std::vector<bool> indexer_layers = read_indexer_layers(config, layers);

  const auto make = [&](int variant) {
    LayerSpec layer;
    const bool has_indexer = (variant & 2) != 0;
    add_mla(spec, layer, sizes.heads, has_indexer ? indexed : sizes.mla, rope);
    if (has_indexer) {
      add_choice_places(layer.tensors, chosen);
      if (indexer_rope >= 0) {
        add_rope_table(layer.tensors, spec, indexer_rope);
      }
    }
    if ((variant & 1) != 0) {
      add_moe(spec, layer, moe);
    } else {
      add_ffn(spec, layer, FfnKind::kGated, width);
    }
    add_two_norms(spec, layer);
    return layer;
  };
  add_layers(
      spec, layers,
      [&](int i) {
        const auto at = static_cast<std::size_t>(i);
        return (moe_layers[at] ? 1 : 0) + (indexer_layers[at] ? 2 : 0);
      },
      make);
  if (indexed.indexer_heads > 0) {
    add_choice_buffer(spec, chosen);
  }
  add_embedding_and_head(spec);
  const std::int64_t drafts = spec.family == "glm4_moe_lite"
                                  ? config.class_default({"num_nextn_predict_layers"}, 1, {0, 64})
                                  : read_drafts(config);
  if (drafts > 0) {
    LayerSpec draft;
    start_draft(spec, draft);
    const LayerSpec layer = make(1 + (indexed.indexer_heads > 0 ? 2 : 0));
    draft.attention = layer.attention;
    draft.ffn = layer.ffn;
    draft.tensors.insert(draft.tensors.end(), layer.tensors.begin(), layer.tensors.end());
    // GLM-5 stores no copies of embedding and head (facts "models" 2).
    const bool copies = spec.family != "glm_moe_dsa";
    finish_drafts(spec, std::move(draft), drafts, {.embedding = copies, .head = copies});
  }
}

// LongCat: each layer is two of attention and dense feed-forward, with one mixture of experts
// beside the second half; keys have names of their own.
void build_longcat(const Config& config, ModelSpec& spec) {
  spec.hidden = config.required({"hidden_size"}, {1, kMostHidden});
  spec.vocabulary = config.required({"vocab_size"}, {1, kMostVocabulary});
  spec.tie_word_embeddings = config.class_default("tie_word_embeddings", false);
  const int layers = static_cast<int>(config.required({"num_layers"}, {1, kMostLayers}));
  MlaSizes sizes = read_mla(config);
  sizes.mla.v_dim = config.required({"v_head_dim"}, {1, kMostHeadDim});
  const int rope = add_rope(config, spec, {.head_dim = sizes.mla.rope_dim, .theta_default = 1e7});
  MoeStyle moe;
  moe.experts = read_experts(config);
  moe.experts_per_token = read_experts_per_token(config, moe.experts);
  moe.expert_width =
      config.required({"expert_ffn_hidden_size", "moe_intermediate_size"}, {1, kMostWidth});
  moe.zero_experts = config.plain({"zero_expert_num"}, 0, {0, kMostExperts});
  moe.correction_bias = true;
  const std::int64_t width =
      config.required({"ffn_hidden_size", "intermediate_size"}, {1, kMostWidth});
  const auto add_half = [&](LayerSpec& layer) {
    add_mla(spec, layer, sizes.heads, sizes.mla, rope);
    add_ffn(spec, layer, FfnKind::kGated, width);
    add_two_norms(spec, layer);
  };
  const auto make = [&](int /*variant*/) {
    LayerSpec layer;
    add_half(layer);
    LayerSpec second;
    add_half(second);
    layer.beside = {second.attention};
    layer.tensors.insert(layer.tensors.end(), second.tensors.begin(), second.tensors.end());
    add_moe(spec, layer, moe);
    layer.ffn.width = 2 * width;
    return layer;
  };
  add_layers(
      spec, layers, [](int /*i*/) { return 0; }, make);
  add_embedding_and_head(spec);
  // The published checkpoint has one dense draft layer with its own embedding; no key says so.
  LayerSpec draft;
  start_draft(spec, draft);
  add_half(draft);
  finish_drafts(spec, std::move(draft), 1, {.embedding = true});
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
    add_mla(spec, layer, sizes.heads, sizes.mla, rope, {}, false);
    add_ffn(spec, layer, FfnKind::kGated, width);
    add_two_norms(spec, layer);
    return layer;
  };
  add_layers(
      spec, layers, [](int /*i*/) { return 0; }, make);
  add_embedding_and_head(spec);
}

}  // namespace oomcast::models
