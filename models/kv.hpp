// What each layer keeps per token or per sequence, on one rank.
//
// Formulas: vLLM kv_cache_interface (facts "vllm" 4.1). Page bytes of `block` tokens:
//   full, sliding, chunked   block * kv_heads * (head_dim + v_head_dim) * bytes
//   MLA                      block * (kv_lora_rank + rope_dim) * bytes, one copy on every rank
//   recurrent                conv state + recurrent state, independent of `block`
// DeepSeek V4 (facts "models" 5) keeps in every layer a window of latents (kind kSlidingWindow),
// and beside it one latent, with its indexer's key, for every `tokens_per_entry` tokens, and the
// fp32 state of the entries in the making (kind kCompressed).
#pragma once

#include <optional>
#include <vector>

#include "models/spec.hpp"
#include "models/weights.hpp"
#include "sim/core/units.hpp"

namespace oomcast::models {

struct KvLayerSpec {
  int layer = 0;  // index in the whole model
  AttentionKind kind = AttentionKind::kFull;
  std::int64_t kv_heads = 0;       // on this rank, at least 1; MLA: 1
  std::int64_t head_dim = 0;       // MLA: kv_lora_rank + rope_dim
  std::int64_t v_head_dim = 0;     // MLA: 0
  Tokens window;                   // sliding window or chunk
  std::int64_t indexer_bytes = 0;  // index key of sparse attention, bytes per entry
  std::int64_t tokens_per_entry = 1;
  // Recurrent layers: elements of the two states on this rank.
  std::int64_t conv_elements = 0;
  std::int64_t recurrent_elements = 0;
  std::optional<DType> recurrent_dtype;

  friend bool operator==(const KvLayerSpec&, const KvLayerSpec&) = default;
};

// Caches of the rank's stage, in layer order; a layer may have several. Layers that share another's
// KV are left out.
std::vector<KvLayerSpec> kv_layers(const ModelSpec& spec, const ShardPlan& plan);
// Caches of the model's own draft layers, numbered on from the last layer.
std::vector<KvLayerSpec> draft_kv_layers(const ModelSpec& spec, const ShardPlan& plan);

// Bytes one layer keeps for one token, on average where entries stand for several; 0 for recurrent
// layers.
Bytes kv_bytes_per_token(const KvLayerSpec& layer, DType dtype);
// Bytes one recurrent layer keeps for one sequence; 0 for others.
Bytes state_bytes(const KvLayerSpec& layer, DType dtype);
// Sum over the layers; what one more token costs while no window is full.
Bytes kv_bytes_per_token(const std::vector<KvLayerSpec>& layers, DType dtype);

}  // namespace oomcast::models
