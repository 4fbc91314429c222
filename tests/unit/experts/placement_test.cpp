#include "sim/experts/placement.hpp"

#include <gtest/gtest.h>

#include <string>

#include "sim/core/error.hpp"

namespace oomcast::experts {
namespace {

ExpertGroup group(std::int64_t experts, std::int64_t ranks, std::int64_t picks,
                  Placing placing = Placing::kContiguous, std::int64_t redundant = 0) {
  return {experts, redundant, picks, ranks, 4, placing};
}

TEST(Placement, ContiguousAndRoundRobin) {
  using Rows = std::vector<std::vector<double>>;
  const std::vector<double> loads(4, 1);
  EXPECT_EQ(placement(group(4, 2, 1), loads), (Rows{{1, 1, 0, 0}, {0, 0, 1, 1}}));
  EXPECT_EQ(placement(group(4, 2, 1, Placing::kRoundRobin), loads),
            (Rows{{1, 0, 1, 0}, {0, 1, 0, 1}}));
}

TEST(Placement, BalancedCopiesTheHeaviest) {
  // Loads 6, 2, 1, 1 with two copies more: the first is there three times, 2 each. Packed on two
  // ranks of three slots: 2 + 2 + 1 and 2 + 2 + 1.
  const auto parts = placement(group(4, 2, 1, Placing::kBalanced, 2), {6, 2, 1, 1});
  for (const auto& rank : parts) {
    EXPECT_NEAR(rank[0] * 6 + rank[1] * 2 + rank[2] + rank[3], 5, 1e-12);
  }
  EXPECT_NEAR(parts[0][0] + parts[1][0], 1, 1e-12);
}

TEST(Placement, EveryExpertIsComputedOnce) {
  const std::vector<double> loads{5, 1, 4, 1, 5, 9, 2, 6};
  for (const Placing placing : {Placing::kContiguous, Placing::kRoundRobin, Placing::kBalanced}) {
    const auto parts = placement(group(8, 4, 2, placing, 4), loads);
    for (std::size_t expert = 0; expert < loads.size(); ++expert) {
      double whole = 0;
      for (const auto& rank : parts) {
        whole += rank[expert];
      }
      EXPECT_NEAR(whole, 1, 1e-12);
    }
  }
}

TEST(Placement, WhatDoesNotDivideIsRefusedWithWhatWould) {
  try {
    (void)expert_load({}, group(256, 48, 8));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("32 redundant"), std::string::npos) << error.what();
  }
}

TEST(Load, EvenOnPaper) {
  // 256 experts, 8 picks, 16 ranks: half a copy a token; 1 - (15/16)^8 of the tokens.
  const ExpertLoad load = expert_load({}, group(256, 16, 8));
  EXPECT_DOUBLE_EQ(load.worst().copies, 0.5);
  EXPECT_NEAR(load.worst().tokens, 1 - 0.5967194, 1e-6);
  EXPECT_DOUBLE_EQ(load.imbalance(), 1);
}

TEST(Load, CopiesAreConserved) {
  // One layer: what all ranks get is what was picked.
  ExpertGroup one = group(64, 8, 4);
  one.layers = 1;
  const ExpertLoad load = expert_load(parse_routing("zipf:1.1"), one);
  double all = 0;
  for (const RankLoad& rank : load.ranks) {
    all += rank.copies;
  }
  EXPECT_NEAR(all, 4, 1e-9);
}

TEST(Load, GrowsWithSkewAndShrinksWithBalance) {
  double before = 0;
  for (const char* text : {"zipf:0", "zipf:0.3", "zipf:0.6", "zipf:0.9", "zipf:1.2", "zipf:2"}) {
    const Routing routing = parse_routing(text);
    const double plain = expert_load(routing, group(256, 16, 8)).worst().copies;
    EXPECT_GT(plain, before) << text;
    before = plain;
    const double balanced =
        expert_load(routing, group(256, 16, 8, Placing::kBalanced, 32)).worst().copies;
    EXPECT_LE(balanced, plain + 1e-12) << text;
  }
}

TEST(Load, RotationUndoesBalance) {
  const ExpertGroup balanced = group(256, 16, 8, Placing::kBalanced, 32);
  const double steady = expert_load(parse_routing("zipf:1"), balanced).worst().copies;
  const double rotating = expert_load(parse_routing("zipf:1,windows=8"), balanced).worst().copies;
  EXPECT_NEAR(steady, 0.5, 0.05);
  EXPECT_GT(rotating, 1.3 * steady);
}

}  // namespace
}  // namespace oomcast::experts
