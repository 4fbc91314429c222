// timeline.csv into the ranks that record.json names.
#pragma once

#include <memory>
#include <vector>

#include "sim/report/finished_run.hpp"
#include "sim/run/record.hpp"
#include "workloads/byte_source.hpp"

namespace oomcast::report {

// Fills `startup[i].at_end` and `timeline` of each rank. Throws ConfigError (file, line, column) at
// the first row that is no row of this run: a bad number, a rank that record.json lacks, time that
// goes back, classes that do not sum to the memory in use.
void read_timeline(std::unique_ptr<workloads::LineReader> lines, std::vector<FinishedRank>& ranks);
// The same where the run is at hand still.
void take_timeline(std::vector<RankRecord> run, std::vector<FinishedRank>& ranks);

}  // namespace oomcast::report
