#include <gtest/gtest.h>

#include "sim/search/sweep.hpp"

namespace oomcast::search {
namespace {

PointResult point(std::int64_t tokens, std::int64_t headroom, int gpus) {
  PointResult result;
  result.kv_tokens = tokens;
  result.gpus = gpus;
  result.ranks = {{0, 1, Bytes{100}, Bytes{headroom}}};
  return result;
}

TEST(Pareto, NoneIsBetterInAll) {
  std::vector<PointResult> points = {point(10, 5, 1), point(10, 5, 2), point(20, 1, 1),
                                     point(9, 5, 1), point(30, 9, 1)};
  points[4].kind = OutcomeKind::kStartupOom;  // what does not fit is no choice
  EXPECT_EQ(pareto_front(points, measures(false, std::nullopt)), (std::vector<std::size_t>{0, 2}));
}

TEST(Pareto, EqualPointsStayTogether) {
  EXPECT_EQ(pareto_front({point(1, 1, 1), point(1, 1, 1)}, measures(false, std::nullopt)),
            (std::vector<std::size_t>{0, 1}));
}

TEST(Pareto, CostTakesThePlaceOfCards) {
  const auto judged = measures(false, 2.5);
  EXPECT_EQ(judged.back().name, "cost_per_hour");
  EXPECT_EQ(judged.back().of(point(1, 1, 4)), 10.0);
}

}  // namespace
}  // namespace oomcast::search
