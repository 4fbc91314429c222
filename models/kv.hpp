// What each layer keeps per token or per sequence, on one rank.
//
// Formulas: vLLM kv_cache_interface (facts "vllm" 4.1). Page bytes of `block` tokens:
//   full, sliding, chunked   block * kv_heads * (head_dim + v_head_dim) * bytes
//   MLA                      block * (kv_lora_rank + rope_dim) * bytes, one copy on every rank
//   recurrent                conv state + recurrent state, independent of `block`
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
  std::int64_t indexer_bytes = 0;  // sparse MLA's index key, bytes per token (128 fp8 + 4)
  // Recurrent layers: elements of the two states on this rank.
  std::int64_t conv_elements = 0;
  std::int64_t recurrent_elements = 0;
  std::optional<DType> recurrent_dtype;

  friend bool operator==(const KvLayerSpec&, const KvLayerSpec&) = default;
};

// Layers of the rank's stage that keep a cache; layers that share another's KV are left out.
std::vector<KvLayerSpec> kv_layers(const ModelSpec& spec, const ShardPlan& plan);

// Bytes one layer keeps for one token; 0 for recurrent layers.
Bytes kv_bytes_per_token(const KvLayerSpec& layer, DType dtype);
// Bytes one recurrent layer keeps for one sequence; 0 for others.
Bytes state_bytes(const KvLayerSpec& layer, DType dtype);
// Sum over the layers; what one more token costs while no window is full.
Bytes kv_bytes_per_token(const std::vector<KvLayerSpec>& layers, DType dtype);

}  // namespace oomcast::models
