// quantization_config and hf_quant_config.json -> Quantization.
#pragma once

#include "models/families/family.hpp"

namespace oomcast::models {

// Fills spec.quantization if either file asks for one. A method that is unknown becomes a problem;
// one whose bytes are not modelled is kept, and refused by weights_on_rank().
void read_quantization(const Config& config, const Json& hf_quant_config, ModelSpec& spec);

}  // namespace oomcast::models
