// The tensors that most decoders are made of, fused as engines allocate them.
#include "models/families/family.hpp"

namespace oomcast::models {

void add_linear(std::vector<TensorSpec>& tensors, const Linear& linear) {
  TensorSpec weight;
  weight.name = linear.weight;
  weight.rows = linear.rows;
  weight.columns = linear.columns;
  weight.quantisable = linear.quantisable;
  tensors.push_back(weight);
  if (linear.has_bias) {
    TensorSpec bias;
    bias.name = linear.bias;
    bias.rows = linear.rows;
    tensors.push_back(bias);
  }
}

void add_vector(std::vector<TensorSpec>& tensors, std::string_view name, std::int64_t size,
                Element element) {
  TensorSpec vector;
  vector.name = name;
  vector.rows = {{.size = size}};
  vector.element = element;
  tensors.push_back(vector);
}

void add_norm(std::vector<TensorSpec>& tensors, std::string_view weight, std::int64_t size,
              std::string_view bias) {
  add_vector(tensors, weight, size);
  if (!bias.empty()) {
    add_vector(tensors, bias, size);
  }
}

void add_rope_table(std::vector<TensorSpec>& tensors, const ModelSpec& spec, int rope) {
  if (rope < 0) {
    return;
  }
  const RopeSpec& parameters = spec.ropes.at(static_cast<std::size_t>(rope));
  TensorSpec table;
  table.name = "self_attn.rotary_emb.cos_sin_cache";
  table.rows = {{.size = parameters.table_rows}};
  table.columns = {.size = parameters.rotary_dim};
  table.leaf = WeightLeaf::kBuffers;
  table.parameter = false;
  table.rope = rope;
  tensors.push_back(table);
}

void add_attention_scales(std::vector<TensorSpec>& tensors) {
  for (const std::string_view name : {"self_attn.attn._k_scale", "self_attn.attn._v_scale",
                                      "self_attn.attn._q_scale", "self_attn.attn._prob_scale"}) {
    add_vector(tensors, name, 1, Element::kFloat32);
    tensors.back().leaf = WeightLeaf::kScales;
    tensors.back().parameter = false;
  }
}

namespace {

void add_qk_norms(std::vector<TensorSpec>& tensors, const AttentionSpec& attention, QkNorm kind) {
  if (kind == QkNorm::kNone) {
    return;
  }
  const bool full = kind == QkNorm::kFullWidth;
  add_vector(tensors, "self_attn.q_norm.weight",
             full ? attention.heads * attention.head_dim : attention.head_dim);
  add_vector(tensors, "self_attn.k_norm.weight",
             full ? attention.kv_heads * attention.head_dim : attention.head_dim);
}

}  // namespace

void add_attention(const ModelSpec& spec, LayerSpec& layer, const AttentionSpec& attention,
                   const AttentionStyle& style) {
  layer.attention = attention;
  layer.attention.qk_norm = style.qk_norm != QkNorm::kNone;
  layer.attention.query_gate = style.query_gate;
  std::vector<TensorSpec>& tensors = layer.tensors;
  const std::int64_t query_units = attention.heads * (style.query_gate ? 2 : 1);
  add_linear(tensors, {.weight = "self_attn.qkv_proj.weight",
                       .bias = "self_attn.qkv_proj.bias",
                       .rows = {{query_units, attention.head_dim, Split::kEven},
                                {attention.kv_heads, attention.head_dim, Split::kKvHeads},
                                {attention.kv_heads, attention.v_head_dim, Split::kKvHeads,
                                 !style.values_are_keys}},
                       .columns = {.size = spec.hidden},
                       .has_bias = style.qkv_bias});
  add_linear(tensors, {.weight = style.output,
                       .bias = "self_attn.o_proj.bias",
                       .rows = {{.size = spec.hidden}},
                       .columns = {attention.heads, attention.v_head_dim, Split::kEven},
                       .has_bias = style.output_bias,
                       .quantisable = style.output_quantisable});
  if (!style.gate.empty()) {
    const std::int64_t values = style.gate_per_head ? 1 : attention.v_head_dim;
    add_linear(tensors, {.weight = style.gate,
                         .bias = {},
                         .rows = {{attention.heads, values, Split::kEven}},
                         .columns = {.size = spec.hidden}});
  }
  if (attention.sinks) {
    TensorSpec sinks;
    sinks.name = "self_attn.sinks";
    sinks.rows = {{attention.heads, 1, Split::kEven}};
    tensors.push_back(sinks);
  }
  if (style.norms_first) {
    add_qk_norms(tensors, attention, style.qk_norm);
  }
  add_rope_table(tensors, spec, attention.rope);
  add_attention_scales(tensors);
  if (!style.norms_first) {
    add_qk_norms(tensors, attention, style.qk_norm);
  }
}

void add_ffn(const ModelSpec& spec, LayerSpec& layer, FfnKind kind, std::int64_t width, bool bias) {
  layer.ffn.kind = kind;
  layer.ffn.width = width;
  layer.ffn.gated = kind == FfnKind::kGated;
  std::vector<Extent> up = {{width, 1, Split::kEven}};
  if (kind == FfnKind::kGated) {
    up.push_back(up.front());
  }
  add_linear(layer.tensors,
             {.weight = kind == FfnKind::kGated ? "mlp.gate_up_proj.weight" : "mlp.up_proj.weight",
              .bias = kind == FfnKind::kGated ? "mlp.gate_up_proj.bias" : "mlp.up_proj.bias",
              .rows = up,
              .columns = {.size = spec.hidden},
              .has_bias = bias});
  add_linear(layer.tensors, {.weight = "mlp.down_proj.weight",
                             .bias = "mlp.down_proj.bias",
                             .rows = {{.size = spec.hidden}},
                             .columns = {width, 1, Split::kEven},
                             .has_bias = bias});
}

void add_embedding_and_head(ModelSpec& spec, const HeadStyle& style) {
  TensorSpec embedding;
  embedding.name = "embed_tokens.weight";
  embedding.rows = {{spec.vocabulary, 1, Split::kVocabulary}};
  embedding.columns = {.size = spec.hidden};
  embedding.place = spec.tie_word_embeddings ? Place::kFirstAndLastStage : Place::kFirstStage;
  spec.before.push_back(embedding);
  if (style.embedding_scale) {
    add_vector(spec.before, "normalizer", 1);
    spec.before.back().leaf = WeightLeaf::kBuffers;
    spec.before.back().parameter = false;
    spec.before.back().place = Place::kEveryStage;
  }
  if (style.final_norm) {
    add_norm(spec.after, "norm.weight", spec.hidden, style.norm_bias ? "norm.bias" : "");
  }
  if (!spec.tie_word_embeddings) {
    embedding.name = "lm_head.weight";
    spec.after.push_back(embedding);
  }
  if (style.head_bias) {
    TensorSpec bias;
    bias.name = "lm_head.bias";
    bias.rows = {{spec.vocabulary, 1, Split::kVocabulary}};
    spec.after.push_back(bias);
  }
  for (TensorSpec& tensor : spec.after) {
    tensor.place = Place::kLastStage;
  }
}

}  // namespace oomcast::models
