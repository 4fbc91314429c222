// Configs of well-known models: models/catalog/OWNER__NAME.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/spec.hpp"
#include "sim/core/json.hpp"

namespace oomcast::models {

// The spec of a Hugging Face id ("meta-llama/Llama-3.1-8B-Instruct"), case-blind; the part after
// the slash alone will do where only one catalog entry has it. Throws ConfigError with the nearest
// ids and the advice to give the model's own config.json. `changes`: config_reader.hpp.
ModelSpec catalog_model(std::string_view name, const Json& changes = nullptr);

// All ids, sorted.
std::vector<std::string> catalog_names();

}  // namespace oomcast::models
