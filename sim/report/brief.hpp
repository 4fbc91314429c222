// The outcome in one line, for scripts and for the logs of continuous integration.
#pragma once

#include <string>

#include "sim/core/json.hpp"
#include "sim/run/record.hpp"

namespace oomcast {

// "fits: 443,984 KV tokens, 7.80 GiB free" (of the fullest rank), or
// "does not fit: kv_too_small in phase kv, kv.pool short by 1.06 GiB; try --max-model-len 32768".
// From `plan --json`. No line break.
std::string plan_brief(const OrderedJson& plan);
// The same of a replay: requests served, the KV peak, what was free at the fullest moment.
std::string record_brief(const RunRecord& record);

}  // namespace oomcast
