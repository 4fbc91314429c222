// config.json (and hf_quant_config.json beside it) -> ModelSpec.
//
// The reader takes what strangers publish: language models nested in text_config, language_config
// or thinker_config, aliases of keys, nulls, missing keys. A missing key is filled only where the
// model's configuration class defines it, and then listed in ModelSpec::assumptions. Everything
// wrong is reported at once in one ConfigError.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/spec.hpp"
#include "sim/core/json.hpp"

namespace oomcast::models {

// `path` is a config.json or a folder that holds one. hf_quant_config.json beside it, or
// NAME.hf_quant_config.json beside NAME.json, is read too; so is the size of a checkpoint that lies
// there (checkpoint.hpp).
//
// `changes`, as engines apply them to a config they have read (vLLM --hf-overrides,
// config/model.py _apply_dict_overrides; SGLang --json-model-override-args): keys of nested configs
// join those, all others are replaced.
ModelSpec read_model_config(const std::string& path, const Json& changes = nullptr);
Json with_changes(Json config, const Json& changes);

// `source` names the file in messages; it becomes ModelSpec::name. `hf_quant_config` may be null.
ModelSpec read_model_config(const Json& config, const std::string& source,
                            const Json& hf_quant_config = nullptr);

// The text of a config.json; Python's Infinity and NaN read as null.
ModelSpec read_model_config_text(std::string_view text, const std::string& source);

// Architectures with a builder, sorted.
std::vector<std::string> supported_architectures();

}  // namespace oomcast::models
