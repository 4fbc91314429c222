// Shared by the tests of the log reader.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sim/logs/log_reader.hpp"

namespace oomcast::logs {

inline EngineLog read(const std::string& text) { return read_log_text(text, "test.log"); }

// The only start of a log.
inline EngineRun only_run(const std::string& text) {
  EngineLog log = read(text);
  EXPECT_EQ(log.runs.size(), 1U) << text;
  return std::move(log.runs.at(0));
}

// A figure of the run in GiB, a count or a ratio; NaN if it has none.
inline double value(const EngineRun& run, Figure figure, const std::string& rank = "") {
  for (std::size_t i = 0; i < run.ranks.size(); ++i) {
    if (run.ranks[i] == rank) {
      if (const Reading* reading = run.find(figure, i)) {
        return measure_of(figure) == Measure::kBytes ? reading->value / 1073741824.0
                                                     : reading->value;
      }
    }
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace oomcast::logs
