// Fewer rows of a timeline, none of its peaks lost.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/run/timeline.hpp"

namespace oomcast::report {

// At most `most` rows (at least 64 of them), in order; all where there are no more. Kept are the
// first and last row of each of equal slices of the rows with the slice's highest and lowest of
// what is drawn, and for every column of the timeline the row of its highest value.
std::vector<TimelineRow> thin(const std::vector<TimelineRow>& rows, std::size_t most);

}  // namespace oomcast::report
