// Fewer rows, the same peaks.
#include "sim/report/thin.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/random/mersenne_twister.hpp>
#include <boost/random/uniform_int_distribution.hpp>

namespace oomcast::report {
namespace {

std::vector<TimelineRow> random_rows(std::size_t count, unsigned seed) {
  boost::random::mt19937 random(seed);
  boost::random::uniform_int_distribution<std::int64_t> value(0, 1'000'000);
  std::vector<TimelineRow> rows(count);
  for (std::size_t i = 0; i < count; ++i) {
    rows[i].at = SimTime{Nanos{static_cast<std::int64_t>(i)}};
    for (Bytes& bytes : rows[i].device) {
      bytes = Bytes{value(random)};
      rows[i].views.device_used += bytes;
    }
    rows[i].kv_used = Bytes{value(random)};
    rows[i].kv_cached = Bytes{value(random)};
    rows[i].views.torch_reserved = Bytes{value(random)};
    rows[i].running = value(random);
    rows[i].waiting = value(random);
    rows[i].step_tokens = value(random);
  }
  return rows;
}

template <typename ValueOf>
std::int64_t highest(const std::vector<TimelineRow>& rows, const ValueOf& value_of) {
  std::int64_t most = 0;
  for (const TimelineRow& row : rows) {
    most = std::max<std::int64_t>(most, value_of(row));
  }
  return most;
}

TEST(Thin, FewRowsStayAsTheyAre) {
  const auto rows = random_rows(64, 1);
  EXPECT_EQ(thin(rows, 64).size(), 64U);
}

TEST(Thin, NoPeakIsLostAtAnySize) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    const auto rows = random_rows(3'000 + seed * 101, seed);
    for (const std::size_t most : {64U, 65U, 100U, 600U, 2'999U}) {
      const auto kept = thin(rows, most);
      EXPECT_LE(kept.size(), most);
      EXPECT_EQ(kept.front().at, rows.front().at);
      EXPECT_EQ(kept.back().at, rows.back().at);
      const auto same = [&](const auto& value_of) {
        EXPECT_EQ(highest(kept, value_of), highest(rows, value_of)) << seed << " " << most;
      };
      for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
        same([leaf](const TimelineRow& row) { return row.device[leaf].count(); });
      }
      same([](const TimelineRow& row) { return row.views.device_used.count(); });
      same([](const TimelineRow& row) { return row.views.torch_reserved.count(); });
      same([](const TimelineRow& row) { return row.kv_used.count(); });
      same([](const TimelineRow& row) { return row.kv_cached.count(); });
      same([](const TimelineRow& row) { return row.running; });
      same([](const TimelineRow& row) { return row.waiting; });
      same([](const TimelineRow& row) { return row.step_tokens; });
      EXPECT_TRUE(std::is_sorted(
          kept.begin(), kept.end(),
          [](const TimelineRow& left, const TimelineRow& right) { return left.at < right.at; }));
    }
  }
}

}  // namespace
}  // namespace oomcast::report
