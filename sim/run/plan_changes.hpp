// What a calibration changes in a plan, by class of memory.
#pragma once

#include <string>

#include "sim/core/json.hpp"
#include "sim/run/plan.hpp"

namespace oomcast {

// Of the fullest rank: {"source": ..., "classes": {"system.context": [before, after], ...},
// "free_bytes": [before, after], "kv_tokens": [before or null, after or null]}; only classes that
// change.
OrderedJson plan_changes_json(const Plan& before, const Plan& after, const std::string& source);

// For a terminal.
std::string plan_changes_text(const OrderedJson& changes);

}  // namespace oomcast
