// An engine's log explained: where the memory went, logged beside predicted; what ended the run,
// and what to change.
#pragma once

#include <string>

#include "sim/core/json.hpp"
#include "sim/logs/engine_log.hpp"
#include "sim/run/explain_identity.hpp"

namespace oomcast {

// Schema oomcast.explain/1. Sizes in GiB carry "_gib" in their keys.
//   {"schema", "log", "lines", "notes": [...],
//    "engines": [{"engine", "engine_version", "model", "gpu", "launch": {"value", "from"} each,
//      "first_line", "last_line", "stream", "phase", "missing": [...], "notes": [...],
//      "logged": {figure: value}, "predicted": {figure: value} or null, "not_predicted": reason,
//      "figures": [{"figure", "value", "rank", "line", "derived"}],
//      "waterfall": {"rows": [{"name", "class", "logged_gib", "predicted_gib", "difference_gib"}],
//        "left": row, "pool": row, "unexplained_gib", "rounding_gib", "filled": [names]},
//      "outcome": {"fits", "kind", "phase", "rank", "class", "short_by_gib", "reason", "line",
//        "message", "oom": {...}, "fixes": [{"change", "frees_gib"}], "failures": [...]}}]}
// Throws ConfigError for options that are wrong.
OrderedJson explain_json(const logs::EngineLog& log, const ExplainOptions& options);

// Whether any start of the log failed.
bool shows_failure(const OrderedJson& explained);

// The terminal's view of explain_json().
std::string explain_text(const OrderedJson& explained);

}  // namespace oomcast
