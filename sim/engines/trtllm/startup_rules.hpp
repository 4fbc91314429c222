// What differs between TensorRT-LLM versions in startup accounting, resolved from
// models/engines/trtllm/presets.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/core/version.hpp"
#include "sim/engines/version_rows.hpp"

namespace oomcast::trtllm {

struct StartupRules {
  std::int64_t tokens_per_block = 32;
  bool profiles = true;  // dry run before the KV cache is sized
  bool blocks_are_ceiled = false;
  bool estimator_splits_heads_unrounded = false;
  bool windows_share_equally = true;
  bool captures_graphs = true;
  bool one_sided_exchange = false;  // of tokens and experts over multi-node NVLink
  Version torch;
  StepCosts step_costs;

  // Measured or assumed quantities.
  Bytes modules;

  std::vector<std::string> provenance;
};

// Throws ConfigError if the preset file (or its replacement) lacks a row or has a wrong type.
StartupRules startup_rules_for(const Version& version);

}  // namespace oomcast::trtllm
