// Multi-head latent attention as builders share it.
#pragma once

#include "models/families/family.hpp"

namespace oomcast::models {

struct MlaSizes {
  std::int64_t heads = 1;
  MlaSpec mla;  // v_dim is the caller's to read
};
MlaSizes read_mla(const Config& config);

// Projections into and out of the latents, rope table, sparse attention's indexer, and the engine's
// four scale scalars. `gate`: name of a projection that gates each head's output; empty: none.
// Both down projections are one linear where the engine's model class `joins` them.
void add_mla(const ModelSpec& spec, LayerSpec& layer, std::int64_t heads, const MlaSpec& mla,
             int rope, std::string_view gate = {}, bool joins = true);

// Tokens that the indexer chose for each of a step's, a buffer of engines that name step_tokens.
void add_choice_buffer(ModelSpec& spec, std::int64_t chosen);

}  // namespace oomcast::models
