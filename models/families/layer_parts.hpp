// Pieces shared by the families whose layers differ too much for build_decoder().
#pragma once

#include "models/families/family.hpp"

namespace oomcast::models {

int read_layer_count(const Config& config);

// Attention to the whole context with the model's common sizes.
AttentionSpec full_attention(const Sizes& sizes, int rope);

// The norms before attention and before the feed-forward part, under their usual names.
void add_two_norms(const ModelSpec& spec, LayerSpec& layer);

}  // namespace oomcast::models
