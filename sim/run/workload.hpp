// What a record says of the request stream it was run with.
#pragma once

#include "sim/core/json.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast {

// What was read, kept and dropped, one entry a source.
OrderedJson workload_json(const workloads::WorkloadOptions& options,
                          const workloads::ReadSummary& summary);

}  // namespace oomcast
