#include "sim/search/boundary.hpp"

#include <gtest/gtest.h>

namespace oomcast::search {
namespace {

PointResult point(bool fits) {
  PointResult result;
  result.kind = fits ? OutcomeKind::kServed : OutcomeKind::kStartupOom;
  return result;
}

Range range(const std::string& text) {
  Problems problems;
  const auto read = parse_range(text, {1, 0}, problems);
  EXPECT_TRUE(read.has_value()) << text;
  return *read;
}

template <typename Holds>
Boundary search(const std::string& text, Holds holds, std::optional<double> anchor = {}) {
  return find_boundary(
      range(text), Criterion("oom"),
      [&](const std::string& value) { return point(holds(std::stod(value))); }, anchor);
}

TEST(Boundary, EveryEdgeOfAMonotoneKnobIsExactInFewSteps) {
  for (const std::int64_t edge : {1, 2, 63, 64, 1000, 524'287, 1'048'575}) {
    const Boundary found =
        search("1:1048576", [edge](double value) { return value <= static_cast<double>(edge); });
    ASSERT_EQ(found.edges.size(), 1U) << edge;
    EXPECT_EQ(found.upper()->holds, std::to_string(edge));
    EXPECT_EQ(found.upper()->breaks, std::to_string(edge + 1));
    EXPECT_LE(found.evaluations, 40);
  }
}

TEST(Boundary, ShowsBothEdgesOfWhatIsNotMonotone) {
  const Boundary found = search(
      "0.01:1+0.01", [](double value) { return value > 0.815 && value < 0.905; }, 0.85);
  ASSERT_EQ(found.edges.size(), 2U);
  EXPECT_FALSE(found.edges[0].is_upper);
  EXPECT_EQ(found.edges[0].holds, "0.82");
  EXPECT_EQ(found.edges[0].breaks, "0.81");
  EXPECT_EQ(found.upper()->holds, "0.90");
  EXPECT_EQ(found.upper()->breaks, "0.91");
}

TEST(Boundary, SaysOnWhichSideOfTheRangeTheEdgeLies) {
  const Boundary above = search("1:100", [](double) { return true; });
  EXPECT_TRUE(above.edges.empty());
  EXPECT_TRUE(above.high_holds);
  const Boundary below = search("1:100", [](double) { return false; });
  EXPECT_TRUE(below.edges.empty());
  EXPECT_FALSE(below.low_holds);
}

TEST(Criterion, BoundsOfTimesAndCounts) {
  PointResult served = point(true);
  served.serving = ServingFigures{};
  served.serving->ttft_p99 = 2.0;
  served.serving->preemptions = 1;
  served.serving->kv_pool = Bytes{1000};
  served.serving->kv_peak = Bytes{989};
  EXPECT_TRUE(Criterion("ttft>2s").holds(served));
  EXPECT_TRUE(Criterion("ttft_p99>2000ms").holds(served));
  EXPECT_FALSE(Criterion("ttft>1.999s").holds(served));
  EXPECT_FALSE(Criterion("preemption").holds(served));
  EXPECT_TRUE(Criterion("kv_full").holds(served));
  served.serving->kv_peak = Bytes{990};
  EXPECT_FALSE(Criterion("kv_full").holds(served));
  EXPECT_EQ(Criterion("kv_full").broken_by(served), "kv_full");
  EXPECT_EQ(Criterion("kv_full").broken_by(point(false)), "startup_oom");
  EXPECT_FALSE(Criterion("ttft>2s").holds(point(false)));
}

// Times are of those that finished; who gave up waited longer.
TEST(Criterion, RequestsGivenUpExceedEveryBound) {
  PointResult served = point(true);
  served.serving = ServingFigures{};
  served.serving->requests = 100;
  served.serving->finished = 99;
  served.serving->aborted = 1;
  EXPECT_TRUE(Criterion("ttft>2s").holds(served));
  served.serving->finished = 98;
  served.serving->aborted = 2;
  EXPECT_FALSE(Criterion("ttft>2s").holds(served));
  EXPECT_TRUE(Criterion("ttft_p50>2s").holds(served));
  served.serving->finished = 0;
  served.serving->aborted = 0;  // all were rejected
  EXPECT_FALSE(Criterion("ttft_p50>2s").holds(served));
}

TEST(Criterion, NonsenseIsRefused) {
  for (const char* text : {"", "ttft", "ttft>", "ttft>2m", "ttft>-1s", "oom>1", "memory"}) {
    EXPECT_THROW(Criterion{text}, ConfigError) << text;
  }
}

TEST(Range, NonsenseIsRefused) {
  for (const char* text : {"", "5", "5:", ":5", "9:1", "1:9+0", "-1:5", "a:b", "1:1"}) {
    Problems problems;
    EXPECT_FALSE(parse_range(text, {1, 0}, problems)) << text;
    EXPECT_FALSE(problems.empty()) << text;
  }
}

}  // namespace
}  // namespace oomcast::search
