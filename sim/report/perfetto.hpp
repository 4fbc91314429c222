// trace.pftrace: a finished run as a native trace for https://ui.perfetto.dev and its tools.
// Format: Perfetto's protos/perfetto/trace/trace.proto (TracePacket, TrackDescriptor, TrackEvent,
// CounterDescriptor).
#pragma once

#include <string>

#include "sim/core/atomic_output.hpp"
#include "sim/report/finished_run.hpp"

namespace oomcast::report {

// The instant of the trace at which the first request arrives: the startup, which takes no
// simulated time, lies before it, one second a phase.
Nanos serving_start(const FinishedRun& run);

// Each rank is a process with
//   counters  each class that is ever used, device used, torch allocated and reserved, KV used,
//             cached and free (bytes); running, waiting, tokens of a step, preemptions so far
//   slices    the phases of its startup with their highest point, then the serving
//   instants  preemptions, the peak of the card, out of memory
// A counter has a sample wherever the value changes. Throws ConfigError when the file cannot be
// written.
void write_perfetto(const FinishedRun& run, CheckedFile& file);

}  // namespace oomcast::report
