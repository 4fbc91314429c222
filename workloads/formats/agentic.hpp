// Agent sessions (kv-cache-tester, also known as weka): one session a line, its requests in order,
// sub-agents nested.
#pragma once

#include <memory>

#include "workloads/byte_source.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::workloads::formats {

inline constexpr const char* kAgenticName = "agentic";

// Sessions have no absolute start: `options.concurrent_sessions` of them run at once, in file
// order, and a turn comes `think_time` after the answer before it. Sub-agents run beside their
// session, from where they stand in it.
std::unique_ptr<RequestStream> open_agentic(std::unique_ptr<LineReader> lines,
                                            const TraceOptions& options);

}  // namespace oomcast::workloads::formats
