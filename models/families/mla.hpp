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
void add_mla(const ModelSpec& spec, LayerSpec& layer, std::int64_t heads, const MlaSpec& mla,
             int rope, std::string_view gate = {});

}  // namespace oomcast::models
