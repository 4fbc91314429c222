// A finished run's startup and peaks as CSV, beside the timeline.csv and requests.csv it has.
#pragma once

#include <string>

#include "sim/report/finished_run.hpp"

namespace oomcast::report {

// rank, phase, device_peak_bytes, device_used_bytes, torch_allocated_bytes, torch_reserved_bytes
// and a column a class, as each phase ends.
std::string startup_csv(const FinishedRun& run);
// rank, of ("device" or a class), bytes, time_s, during and a column a class: what was alive.
std::string peaks_csv(const FinishedRun& run);

}  // namespace oomcast::report
