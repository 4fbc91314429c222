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

// Eight-level bars of the values, `width` of them, each the largest of its share; values in [0, 1].
std::string sparkline(const std::vector<double>& values, std::size_t width);

}  // namespace oomcast
