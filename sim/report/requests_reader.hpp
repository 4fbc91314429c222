// requests.csv, of any length, as quantiles of all requests and a sample of them.
#pragma once

#include <memory>

#include "sim/report/finished_run.hpp"
#include "workloads/byte_source.hpp"

namespace oomcast::report {

// Throws ConfigError (file, line, column) at the first row that is none.
FinishedRequests read_requests(std::unique_ptr<workloads::LineReader> lines);

}  // namespace oomcast::report
