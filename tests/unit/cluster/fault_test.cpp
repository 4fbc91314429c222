#include "sim/cluster/fault.hpp"

#include <gtest/gtest.h>

namespace oomcast::cluster {
namespace {

constexpr PoolSizes kPools{2, 3};

std::optional<Fault> parsed(std::string_view text) {
  Problems problems;
  auto fault = parse_fault(text, kPools, problems);
  EXPECT_TRUE(problems.empty()) << text;
  return fault;
}

std::string refusal(std::string_view text) {
  Problems problems;
  EXPECT_EQ(parse_fault(text, kPools, problems), std::nullopt) << text;
  EXPECT_EQ(problems.found().size(), 1U) << text;
  return problems.empty() ? "" : to_string(problems.found().front());
}

TEST(Fault, Reads) {
  const auto kill = parsed("kill prefill 1 at 12s");
  ASSERT_TRUE(kill);
  EXPECT_EQ(kill->kind, Fault::Kind::kKill);
  EXPECT_EQ(kill->role, KvHandoff::Role::kPrefill);
  EXPECT_EQ(kill->server, 1U);
  EXPECT_EQ(kill->at, SimTime{kSecond * 12});
  const auto slow = parsed("  slow decode 2 to 12.5% at 500ms for 2m ");
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->role, KvHandoff::Role::kDecode);
  EXPECT_EQ(slow->share, 0.125);
  EXPECT_EQ(slow->at, SimTime{Nanos{500'000'000}});
  EXPECT_EQ(slow->until, SimTime{Nanos{120'500'000'000}});
  EXPECT_EQ(parsed("slow prefill 0 to 100% at 0s")->until, std::nullopt);
  EXPECT_EQ(parsed("drop decode 0 at 1.5h")->at, SimTime{kSecond * 5400});
}

TEST(Fault, SaysWhichServersThereAre) {
  EXPECT_NE(refusal("kill prefill 2 at 1s").find("a prefill server from 0 to 1"),
            std::string::npos);
  EXPECT_NE(refusal("kill decode 7 at 1s").find("there are 3"), std::string::npos);
}

TEST(Fault, RefusesWhatIsNone) {
  for (const char* text :
       {"", "kill", "kill router 0 at 1s", "burn prefill 0 at 1s", "kill prefill -1 at 1s",
        "kill prefill 0", "kill prefill 0 at", "kill prefill 0 at 12", "kill prefill 0 at -1s",
        "kill prefill 0 at nans", "kill prefill 0 at 1e300h", "kill prefill 0 at 1s twice",
        "kill prefill 0 to 10% at 1s", "slow prefill 0 at 1s", "slow prefill 0 to 0% at 1s",
        "slow prefill 0 to 1e-300% at 1s", "slow prefill 0 to 101% at 1s",
        "slow prefill 0 to 10% at 1s for", "drop prefill 99999999999999999999 at 1s"}) {
    refusal(text);
  }
}

}  // namespace
}  // namespace oomcast::cluster
