// A run over time in a few lines of the terminal.
#pragma once

#include <string>
#include <vector>

#include "sim/run/record.hpp"

namespace oomcast {

// KV in use, running, waiting and tokens a step of the first rank: equal slices of the run, each
// bar the most of its slice and a full one the most of all.
std::string strips(const RunRecord& record);
// The same of one rank of a cluster.
std::string strips(const RankRecord& rank);

// Eight-level bars of the values, `width` of them, each the largest of its share; values in [0, 1].
std::string sparkline(const std::vector<double>& values, std::size_t width);

}  // namespace oomcast
