#include "models/families/layer_parts.hpp"

namespace oomcast::models {

int read_layer_count(const Config& config) {
  return static_cast<int>(config.required({"num_hidden_layers", "num_layers"}, {1, kMostLayers}));
}

AttentionSpec full_attention(const Sizes& sizes, int rope) {
  AttentionSpec attention;
  attention.kind = AttentionKind::kFull;
  attention.heads = sizes.heads;
  attention.kv_heads = sizes.kv_heads;
  attention.head_dim = sizes.head_dim;
  attention.v_head_dim = sizes.head_dim;
  attention.rope = rope;
  return attention;
}

void add_two_norms(const ModelSpec& spec, LayerSpec& layer) {
  add_norm(layer.tensors, "input_layernorm.weight", spec.hidden);
  add_norm(layer.tensors, "post_attention_layernorm.weight", spec.hidden);
}

}  // namespace oomcast::models
