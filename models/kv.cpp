#include "models/kv.hpp"

namespace oomcast::models {
namespace {

// Gathers the caches of layers in order.
class Caches {
 public:
  explicit Caches(const ShardPlan& plan)
      : tp_(plan.attention_tp.value_or(plan.tp)), draft_tokens_(plan.draft_tokens) {}

  void add(const LayerSpec& layer, int number) {
    add(layer.attention, number);
    for (const AttentionSpec& attention : layer.beside) {
      add(attention, number);
    }
  }

  std::vector<KvLayerSpec> take() { return std::move(out_); }

 private:
  void add(const AttentionSpec& attention, int number) {
    if (attention.kind == AttentionKind::kNone || attention.kv_from_layer) {
      return;
    }
    KvLayerSpec cache;
    cache.layer = number;
    cache.kind = attention.kind;
    cache.window = attention.window;
    if (attention.kind == AttentionKind::kMla) {
      cache.kv_heads = 1;
      cache.head_dim = attention.mla.kv_lora_rank + attention.mla.rope_dim;
      cache.indexer_bytes =
          attention.mla.indexer_heads > 0 ? quantised_key(attention.mla.indexer_dim) : 0;
    } else if (attention.kind == AttentionKind::kCompressed) {
      add_compressed(attention, cache);
      return;
    } else if (has_state(attention.kind)) {
      set_state(attention.state, cache);
    } else {
      cache.kv_heads = std::max<std::int64_t>(1, attention.kv_heads / tp_);
      cache.head_dim = attention.head_dim;
      cache.v_head_dim = attention.v_head_dim;
      cache.indexer_bytes = bytes_of(DType::kBFloat16, attention.index_key).count();
    }
    out_.push_back(cache);
  }

  // fp8 values and one fp32 scale.
  static std::int64_t quantised_key(std::int64_t width) { return width + 4; }

  void set_state(const StateSpec& state, KvLayerSpec& cache) const {
    // Groups that tp does not divide are extended to one a rank (vLLM mamba_utils).
    const std::int64_t groups =
        state.groups % tp_ == 0 ? state.groups : std::max<std::int64_t>(state.groups, tp_);
    cache.conv_elements = (state.inner + groups * state.group_size) / tp_ *
                          std::max<std::int64_t>(state.kernel - 1 + draft_tokens_, 0);
    cache.recurrent_elements = state.heads / tp_ * state.head_rows * state.head_columns;
    cache.recurrent_dtype = state.recurrent_dtype;
  }

  void add_compressed(const AttentionSpec& attention, KvLayerSpec cache) {
    const CompressedSpec& compressed = attention.compressed;
    cache.kind = AttentionKind::kSlidingWindow;
    cache.kv_heads = 1;
    cache.head_dim = compressed.latent;
    out_.push_back(cache);
    if (compressed.ratio == 0) {
      return;
    }
    cache.kind = AttentionKind::kCompressed;
    cache.window = Tokens{0};
    cache.tokens_per_entry = compressed.ratio;
    const std::int64_t widths =
        compressed.latent + (compressed.indexer_heads > 0 ? compressed.indexer_dim : 0);
    if (compressed.indexer_heads > 0) {
      cache.indexer_bytes = quantised_key(compressed.indexer_dim);
    }
    // Values and scores of every token of the entries in the making, each `open_entries` wide.
    const std::int64_t open = compressed.open_entries();
    cache.recurrent_elements = 2 * open * compressed.ratio * open * widths;
    cache.recurrent_dtype = DType::kFloat32;
    out_.push_back(cache);
  }

  int tp_;
  std::int64_t draft_tokens_;
  std::vector<KvLayerSpec> out_;
};

}  // namespace

std::vector<KvLayerSpec> kv_layers(const ModelSpec& spec, const ShardPlan& plan) {
  check_sharding(spec, plan);
  const LayerRange range = stage_layers(spec, plan);
  Caches caches(plan);
  for (int i = range.begin; i < range.end; ++i) {
    caches.add(spec.layer(i), i);
  }
  return caches.take();
}

std::vector<KvLayerSpec> draft_kv_layers(const ModelSpec& spec, const ShardPlan& plan) {
  check_sharding(spec, plan);
  Caches caches(plan);
  for (std::size_t i = 0; i < spec.draft_layers.size(); ++i) {
    caches.add(spec.draft_layers[i], spec.layer_count() + static_cast<int>(i));
  }
  return caches.take();
}

Bytes kv_bytes_per_token(const KvLayerSpec& layer, DType dtype) {
  const Bytes entry = bytes_of(dtype, layer.kv_heads * (layer.head_dim + layer.v_head_dim)) +
                      Bytes{layer.indexer_bytes};
  return Bytes{div_ceil(entry.count(), layer.tokens_per_entry)};
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
