// What the terminal shows of a cluster beside what it shows of any run.
#pragma once

#include <string>

#include "sim/run/record.hpp"

namespace oomcast {

// Servers, and every class of memory on a prefill and on a decode rank side by side: once ready,
// and the most while serving.
std::string cluster_budget(const RunRecord& record);
// What became of transfers, and the fullest rank of each role over time.
std::string cluster_serving(const RunRecord& record);

}  // namespace oomcast
