// Marks the tensors that a quantised checkpoint leaves in 16 bits.
#pragma once

#include "models/families/family.hpp"

namespace oomcast::models {

// Fills quantization.kept from its `ignore` list. Layers have at most 64 tensors.
void mark_kept(const ModelSpec& spec, Quantization& quantization, Problems& problems,
               const std::string& source);

}  // namespace oomcast::models
