// record.json, schema oomcast.record/1. Everything that may differ between two runs of the same
// input (host, date, duration) lies under `meta`.
#pragma once

#include "sim/core/json.hpp"
#include "sim/run/record.hpp"

namespace oomcast {

OrderedJson record_json(const RunRecord& record, const OrderedJson& meta);

}  // namespace oomcast
