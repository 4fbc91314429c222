#include "models/kv.hpp"

namespace oomcast::models {

std::vector<KvLayerSpec> kv_layers(const ModelSpec& spec, const ShardPlan& plan) {
  check_sharding(spec, plan);
  const LayerRange range = stage_layers(spec, plan);
  std::vector<KvLayerSpec> out;
  for (int i = range.begin; i < range.end; ++i) {
    const AttentionSpec& attention = spec.layer(i).attention;
    if (attention.kind == AttentionKind::kNone || attention.kv_from_layer) {
      continue;
    }
    KvLayerSpec layer;
    layer.layer = i;
    layer.kind = attention.kind;
    layer.window = attention.window;
    if (attention.kind == AttentionKind::kMla) {
      layer.kv_heads = 1;
      layer.head_dim = attention.mla.kv_lora_rank + attention.mla.rope_dim;
      // 128 fp8 values and one fp32 scale.
      layer.indexer_bytes = attention.mla.indexer_heads > 0 ? attention.mla.indexer_dim + 4 : 0;
    } else if (has_state(attention.kind)) {
      const StateSpec& state = attention.state;
      // Groups that tp does not divide are extended to one a rank (vLLM mamba_utils).
      const std::int64_t groups = state.groups % plan.tp == 0
                                      ? state.groups
                                      : std::max<std::int64_t>(state.groups, plan.tp);
      layer.conv_elements = (state.inner + groups * state.group_size) / plan.tp *
                            std::max<std::int64_t>(state.kernel - 1, 0);
      layer.recurrent_elements = state.heads / plan.tp * state.head_rows * state.head_columns;
      layer.recurrent_dtype = state.recurrent_dtype;
    } else {
      layer.kv_heads = std::max<std::int64_t>(1, attention.kv_heads / plan.tp);
      layer.head_dim = attention.head_dim;
      layer.v_head_dim = attention.v_head_dim;
    }
    out.push_back(layer);
  }
  return out;
}

Bytes kv_bytes_per_token(const KvLayerSpec& layer, DType dtype) {
  return bytes_of(dtype, layer.kv_heads * (layer.head_dim + layer.v_head_dim)) +
         Bytes{layer.indexer_bytes};
}

Bytes state_bytes(const KvLayerSpec& layer, DType dtype) {
  return bytes_of(dtype, layer.conv_elements) +
         bytes_of(layer.recurrent_dtype.value_or(dtype), layer.recurrent_elements);
}

Bytes kv_bytes_per_token(const std::vector<KvLayerSpec>& layers, DType dtype) {
  Bytes sum;
  for (const KvLayerSpec& layer : layers) {
    sum += kv_bytes_per_token(layer, dtype);
  }
  return sum;
}

}  // namespace oomcast::models
