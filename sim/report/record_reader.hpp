// record.json as a FinishedRun; timelines and requests are read from the files beside it.
#pragma once

#include <string_view>

#include "sim/core/json.hpp"
#include "sim/report/finished_run.hpp"

namespace oomcast::report {

// `run.ranks[i].startup` holds the phases' names and peaks; their rows are still empty. Adds what
// is wrong to `problems`, named by key.
FinishedRun read_record(const Json& record, const std::string& source, Problems& problems);

}  // namespace oomcast::report
