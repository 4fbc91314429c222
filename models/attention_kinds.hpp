// Questions about the attentions of a model, those that stand beside another in one layer included.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "models/spec.hpp"

namespace oomcast::models {

// Tokens before a window, or a chunk, are not seen again.
constexpr bool has_window(AttentionKind kind) {
  return kind == AttentionKind::kSlidingWindow || kind == AttentionKind::kChunked;
}

// Whether `is(AttentionSpec)` holds for any attention of any layer.
template <typename Is>
bool any_attention(const ModelSpec& spec, Is is) {
  return std::any_of(spec.layer_kinds.begin(), spec.layer_kinds.end(), [&](const LayerSpec& layer) {
    return is(layer.attention) || std::any_of(layer.beside.begin(), layer.beside.end(), is);
  });
}

inline bool has_recurrent_state(const ModelSpec& spec) {
  return any_attention(spec,
                       [](const AttentionSpec& attention) { return has_state(attention.kind); });
}

inline bool has_attention(const ModelSpec& spec, AttentionKind kind) {
  return any_attention(spec,
                       [kind](const AttentionSpec& attention) { return attention.kind == kind; });
}

// Whether the model's architecture is among these.
inline bool named(const std::vector<std::string>& architectures, const ModelSpec& spec) {
  return std::find(architectures.begin(), architectures.end(), spec.architecture) !=
         architectures.end();
}

inline bool has_experts(const ModelSpec& spec) {
  return std::any_of(spec.layer_kinds.begin(), spec.layer_kinds.end(),
                     [](const LayerSpec& layer) { return layer.ffn.kind == FfnKind::kMoe; });
}

}  // namespace oomcast::models
