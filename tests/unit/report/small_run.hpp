// A run small enough to check by hand, as the writers write it.
#pragma once

#include <string>

#include "sim/report/finished_run.hpp"
#include "sim/run/record.hpp"

namespace oomcast::report {

// Two ranks (the second stands for two alike) on cards of 1000 bytes: phases `load` and `ready`,
// three rows of serving each, two finished requests and one rejected.
struct SmallRun {
  RunRecord record;
  std::vector<RequestRow> requests;
};
SmallRun small_run(const std::string& model = "tiny");

// record.json, timeline.csv and requests.csv through the project's own writers.
RunTexts texts_of(const SmallRun& run);

}  // namespace oomcast::report
