#include "sim/cluster/router.hpp"

#include <gtest/gtest.h>

namespace oomcast::cluster {
namespace {

TEST(Router, RoundRobinPassesOverTheDead) {
  Router router(RoutePolicy::kRoundRobin);
  std::vector<ServerLoad> pool(3);
  pool[1].alive = false;
  EXPECT_EQ(router.pick(pool), 0U);
  EXPECT_EQ(router.pick(pool), 2U);
  EXPECT_EQ(router.pick(pool), 0U);
}

TEST(Router, LeastLoadedTakesTheFirstOfEquals) {
  Router router(RoutePolicy::kLeastLoaded);
  EXPECT_EQ(router.pick({{true, 7}, {true, 3}, {true, 3}}), 1U);
  EXPECT_EQ(router.pick({{true, 7}, {false, 3}, {true, 4}}), 2U);
}

TEST(Router, NobodyAlive) {
  EXPECT_EQ(Router(RoutePolicy::kRoundRobin).pick({{false, 0}}), std::nullopt);
  EXPECT_EQ(Router(RoutePolicy::kLeastLoaded).pick({}), std::nullopt);
}

TEST(Router, Names) {
  EXPECT_EQ(route_policy_of("least-loaded"), RoutePolicy::kLeastLoaded);
  EXPECT_EQ(route_policy_of("random"), std::nullopt);
}

}  // namespace
}  // namespace oomcast::cluster
