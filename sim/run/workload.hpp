// The request stream a user describes: traces, generators and how they are changed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/json.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast {

struct WorkloadInput {
  std::vector<std::string> traces;  // files, or "-"; merged by arrival
  std::string trace_format;         // empty: detected
  std::string synthetic;            // generator instead of traces
  std::optional<std::int64_t> requests;
  std::string rate_scale;                   // empty: as recorded
  std::optional<std::int64_t> closed_loop;  // clients
  std::uint64_t seed = 1;
};

// Throws ConfigError when nothing or too much is named, or a trace cannot be read.
std::unique_ptr<workloads::RequestStream> open_workload(const WorkloadInput& input);

// What was read, kept and dropped, one entry a source.
OrderedJson workload_json(const WorkloadInput& input, const workloads::ReadSummary& summary);

}  // namespace oomcast
