// The terminal's view: a budget with bars, startup phases, what happened and what to change.
#pragma once

#include <string>

#include "sim/core/json.hpp"
#include "sim/run/record.hpp"

namespace oomcast {

// From `plan --json`.
std::string plan_text(const OrderedJson& plan);
// Whole run, the plan's budget included.
std::string record_text(const RunRecord& record);

}  // namespace oomcast
