#include "sim/experts/routing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "sim/core/error.hpp"

namespace oomcast::experts {
namespace {

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST(Routing, ZipfOnPaper) {
  // 4 experts, 1 pick, skew 1: 1, 1/2, 1/3, 1/4 of 25/12.
  auto shares = expert_shares(parse_routing("zipf:1"), 0, 0, 4, 1);
  std::sort(shares.rbegin(), shares.rend());
  EXPECT_NEAR(shares[0], 12.0 / 25, 1e-12);
  EXPECT_NEAR(shares[1], 6.0 / 25, 1e-12);
  EXPECT_NEAR(shares[3], 3.0 / 25, 1e-12);
}

TEST(Routing, ATokenPicksAnExpertOnce) {
  // 2 of 4 with weights 1, 1/4, 1/9, 1/16: the first takes a whole pick, the others share one.
  auto shares = expert_shares(parse_routing("zipf:2"), 0, 0, 4, 2);
  std::sort(shares.rbegin(), shares.rend());
  const double rest = 1.0 / 4 + 1.0 / 9 + 1.0 / 16;
  EXPECT_DOUBLE_EQ(shares[0], 1);
  EXPECT_NEAR(shares[1], 1.0 / 4 / rest, 1e-12);
  EXPECT_NEAR(shares[3], 1.0 / 16 / rest, 1e-12);
}

TEST(Routing, SharesAlwaysSumToThePicks) {
  for (const char* text : {"uniform", "zipf:0", "zipf:0.7", "zipf:3,burst=50,windows=4,seed=9"}) {
    const Routing routing = parse_routing(text);
    for (const std::int64_t picks : {1, 2, 8, 64}) {
      for (int window = 0; window < routing.windows; ++window) {
        const auto shares = expert_shares(routing, 3, window, 64, picks);
        EXPECT_NEAR(sum(shares), static_cast<double>(picks), 1e-9) << text;
        EXPECT_LE(*std::max_element(shares.begin(), shares.end()), 1 + 1e-12) << text;
        EXPECT_GE(*std::min_element(shares.begin(), shares.end()), 0) << text;
      }
    }
  }
}

TEST(Routing, LayersWindowsAndSeedsDiffer) {
  const Routing one = parse_routing("zipf:1,windows=2,seed=1");
  const Routing two = parse_routing("zipf:1,windows=2,seed=2");
  const auto first = expert_shares(one, 0, 0, 64, 8);
  EXPECT_EQ(first, expert_shares(one, 0, 0, 64, 8));
  EXPECT_NE(first, expert_shares(one, 1, 0, 64, 8));
  EXPECT_NE(first, expert_shares(one, 0, 1, 64, 8));
  EXPECT_NE(first, expert_shares(two, 0, 0, 64, 8));
}

TEST(Routing, TableFromAFile) {
  const std::string path = testing::TempDir() + "routing_table.json";
  std::ofstream(path) << "[[1, 3], [1, 1]]";
  const Routing routing = parse_routing("file:" + path);
  EXPECT_EQ(expert_shares(routing, 0, 0, 2, 1), (std::vector<double>{0.25, 0.75}));
  EXPECT_EQ(expert_shares(routing, 1, 0, 2, 1), (std::vector<double>{0.5, 0.5}));
  EXPECT_THROW((void)expert_shares(routing, 2, 0, 2, 1), ConfigError);
  EXPECT_THROW((void)expert_shares(routing, 0, 0, 3, 1), ConfigError);
  std::ofstream(path) << "[2, 6]";
  EXPECT_EQ(expert_shares(parse_routing("file:" + path), 7, 0, 2, 1),
            (std::vector<double>{0.25, 0.75}));
}

TEST(Routing, WrongTextsAreRefused) {
  for (const char* text :
       {"", "zipf", "zipf:", "zipf:-1", "zipf:nan", "zipf:1,burst=0.5", "zipf:1,windows=0",
        "zipf:1,seed=-1", "zipf:1,heat=2", "zipf:1e99", "file:/nowhere.json", "gauss:1"}) {
    EXPECT_THROW((void)parse_routing(text), ConfigError) << text;
  }
  const std::string path = testing::TempDir() + "routing_wrong.json";
  for (const char* text : {"{}", "[]", "[[]]", "[[0, 0]]", "[[1, -1]]", "[[1, \"x\"]]", "[[1"}) {
    std::ofstream(path) << text;
    EXPECT_THROW((void)parse_routing("file:" + path), ConfigError) << text;
  }
  try {
    (void)parse_routing("zipf:9,burst=0,windows=x");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 3U) << error.what();
  }
}

}  // namespace
}  // namespace oomcast::experts
