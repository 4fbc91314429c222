// report.html: one run, or two side by side.
#pragma once

#include <string>

#include "sim/report/finished_run.hpp"

namespace oomcast::report {

// At most some 10 MB whatever the length of the run; what was thinned is said in the page.
std::string report_page(const FinishedRun& run);
// `before` and `after` with their differences.
std::string comparison_page(const FinishedRun& before, const FinishedRun& after);

}  // namespace oomcast::report
