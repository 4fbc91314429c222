// The host tier on paper: what is copied and when, what leaves the card, what comes back.
#include <gtest/gtest.h>

#include "sim/core/error.hpp"
#include "sim/engines/sglang/radix_tree.hpp"
#include "sim/engines/sglang/scheduler.hpp"

namespace oomcast::sglang {
namespace {

// 100 slots on the card.
SchedulerConfig tiered(std::int64_t host, WritePolicy policy) {
  SchedulerConfig config;
  config.pool_tokens = Tokens{100};
  config.context_length = Tokens{1000};
  config.max_running_requests = 8;
  config.disable_overlap_schedule = true;
  config.host_tier = HostTierSettings{Tokens{host}, policy};
  return config;
}

class Tiers {
 public:
  explicit Tiers(const SchedulerConfig& config) : scheduler(config) {}

  // A prompt that ends with its first token, of content `segment` and unshared `own`.
  void add(RequestId id, std::uint64_t segment, std::int64_t shared, std::int64_t own = 0) {
    const std::vector<ContentSegment> prompt{{segment, Tokens{shared}}};
    RequestSpec spec;
    spec.id = id;
    spec.prompt_len = Tokens{shared + own};
    spec.prompt = prompt;
    spec.max_output = Tokens{1};
    ASSERT_EQ(scheduler.add(spec), Added::kQueued);
  }
  const StepPlan& round() {
    const StepPlan& plan = scheduler.schedule();
    output = &scheduler.complete();
    scheduler.check_conservation();
    return plan;
  }
  // The request's round, with its copies over at once.
  void serve(RequestId id, std::uint64_t segment, std::int64_t shared) {
    add(id, segment, shared);
    const StepPlan& plan = round();
    for (const auto& copy : {plan.host.write, plan.host.load, output->write}) {
      if (copy) {
        EXPECT_TRUE(scheduler.copy_done(copy->job));
      }
    }
    scheduler.check_conservation();
  }
  [[nodiscard]] std::int64_t host() const { return scheduler.host_used().count(); }

  Scheduler scheduler;
  const StepOutput* output = nullptr;
};

TEST(SglangHostTier, WriteThroughCopiesWithTheFirstHitAndHoldsTheNode) {
  Tiers tiers(tiered(200, WritePolicy::kWriteThrough));
  tiers.add(1, 7, 20);
  tiers.round();
  ASSERT_TRUE(tiers.output->write);
  EXPECT_EQ(tiers.output->write->tokens, Tokens{20});
  EXPECT_EQ(tiers.host(), 20);
  EXPECT_EQ(tiers.scheduler.slots().used, Tokens{20});  // read by the copy
  // 80 are free, and 85 + 1 of output + a page are asked for.
  const std::int64_t job = tiers.output->write->job;
  tiers.add(2, 8, 85);
  EXPECT_EQ(tiers.round().kind, Kind::kIdle);
  EXPECT_TRUE(tiers.scheduler.copy_done(job));
  EXPECT_FALSE(tiers.scheduler.copy_done(job));
  EXPECT_EQ(tiers.scheduler.slots().cached, Tokens{20});
  EXPECT_EQ(tiers.round().kind, Kind::kPrefill);
  EXPECT_EQ(tiers.host(), 20 + 85);  // what left the card is still on the host
}

TEST(SglangHostTier, SelectiveCopiesWithTheSecond) {
  Tiers tiers(tiered(200, WritePolicy::kWriteThroughSelective));
  tiers.serve(1, 7, 20);
  EXPECT_EQ(tiers.host(), 0);
  tiers.add(2, 7, 20);
  tiers.round();
  ASSERT_TRUE(tiers.output->write);
  EXPECT_EQ(tiers.output->write->tokens, Tokens{20});  // both halves: the hit ended at 19
  EXPECT_EQ(tiers.host(), 20);
}

TEST(SglangHostTier, WriteBackCopiesWhatLeavesTheCardAndWaits) {
  Tiers tiers(tiered(200, WritePolicy::kWriteBack));
  tiers.serve(1, 7, 20);
  EXPECT_EQ(tiers.host(), 0);
  tiers.add(2, 8, 90);  // 10 slots are missing: the whole leaf of 20 goes
  const StepPlan& plan = tiers.round();
  EXPECT_EQ(plan.host.awaited, Tokens{20});
  EXPECT_FALSE(plan.host.write || tiers.output->write);
  EXPECT_EQ(tiers.host(), 20);
  // The first prompt again: 20 come back, for which the second's 90 go.
  tiers.add(3, 7, 20, 5);
  const StepPlan& again = tiers.round();
  EXPECT_EQ(again.host.awaited, Tokens{90});
  ASSERT_TRUE(again.host.load);
  EXPECT_EQ(again.host.load->tokens, Tokens{20});
  ASSERT_EQ(again.admitted.size(), 1U);
  EXPECT_EQ(again.admitted[0].hit, Tokens{20});
  EXPECT_EQ(again.extended[0].tokens, Tokens{5});
  EXPECT_EQ(tiers.scheduler.prefix_hit_tokens(), Tokens{20});
}

TEST(SglangHostTier, ALoadedPrefixStaysUntilItsCopyIsOver) {
  Tiers tiers(tiered(300, WritePolicy::kWriteThrough));
  tiers.serve(1, 7, 20);
  tiers.serve(2, 8, 90);
  tiers.add(3, 7, 20, 5);
  const StepPlan& plan = tiers.round();
  ASSERT_TRUE(plan.host.load && tiers.output->write);
  const std::int64_t load = plan.host.load->job;
  EXPECT_EQ(tiers.output->write->tokens, Tokens{5});  // the rest is on the host already
  EXPECT_TRUE(tiers.scheduler.copy_done(tiers.output->write->job));
  EXPECT_EQ(tiers.scheduler.slots().used, Tokens{20});
  EXPECT_TRUE(tiers.scheduler.copy_done(load));
  EXPECT_EQ(tiers.scheduler.slots().used, Tokens{0});
  tiers.scheduler.check_conservation();
}

// Ten tokens are worth a copy, nine are not.
TEST(SglangHostTier, ShortHitsAreComputedAgain) {
  for (const std::int64_t hit : {9, 10}) {
    Tiers tiers(tiered(300, WritePolicy::kWriteThrough));
    tiers.serve(1, 7, hit);
    tiers.serve(2, 8, 93);
    tiers.add(3, 7, hit, 3);
    const StepPlan& plan = tiers.round();
    EXPECT_EQ(plan.host.load.has_value(), hit == 10);
    EXPECT_EQ(plan.extended[0].tokens, Tokens{hit == 10 ? 3 : 12});
  }
}

TEST(SglangHostTier, WithoutRoomOnTheHostTheNodeIsLost) {
  for (const WritePolicy policy : {WritePolicy::kWriteThrough, WritePolicy::kWriteBack}) {
    Tiers tiers(tiered(15, policy));
    tiers.serve(1, 7, 20);
    tiers.serve(2, 8, 90);
    EXPECT_EQ(tiers.host(), 0);
    tiers.add(3, 7, 20, 5);
    EXPECT_EQ(tiers.round().extended[0].tokens, Tokens{25});
  }
}

TEST(SglangHostTier, TheHostForgetsItsLeastRecentLeaf) {
  Tiers tiers(tiered(95, WritePolicy::kWriteThrough));
  tiers.serve(1, 7, 20);
  tiers.serve(2, 8, 70);
  tiers.serve(3, 9, 70);  // the card lets both go; the host has 5 left, and lets the first go, then
  EXPECT_EQ(tiers.host(), 70);  // the second
  tiers.add(4, 7, 20, 5);
  EXPECT_EQ(tiers.round().extended[0].tokens, Tokens{25});
}

kv::TokenRuns tokens(std::uint64_t segment, std::int64_t length) {
  kv::TokenRuns made;
  made.append({segment, 0, length});
  return made;
}

// Write back: copies of what is on the card too make room, even of what goes next.
TEST(SglangHostTier, DuplicatesGoFirst) {
  SlotPools pools{SlotPool{100}, SlotPool{0}, 1, false};
  TreeSettings settings;
  settings.host = HostTierSettings{Tokens{25}, WritePolicy::kWriteBack};
  RadixTree tree(settings, pools);
  const kv::TokenRuns ten = tokens(1, 10);
  const kv::TokenRuns twenty = tokens(2, 20);
  for (const kv::TokenRuns* content : {&ten, &twenty}) {
    pools.full.take(content->length());
    tree.insert(*content, {.length = content->length()});
  }
  tree.evict(1, 0);
  EXPECT_EQ(tree.take_awaited(), 10);
  EXPECT_EQ(pools.full.free(), 80);
  RadixTree::Match found = tree.match(ten, 10);
  EXPECT_EQ(found.length, 0);
  EXPECT_EQ(found.host, 10);
  ASSERT_TRUE(tree.load_back(found.end, found.host));
  tree.check(0);
  for (const NodeCopy& copy : tree.take_loads().nodes) {
    tree.copy_over(copy);
  }
  EXPECT_EQ(tree.host_used(), 10);  // on both now
  tree.evict(1, 0);                 // the twenty need 5 more than are free
  EXPECT_EQ(tree.take_awaited(), 20);
  EXPECT_EQ(tree.host_used(), 20);
  found = tree.match(ten, 10);
  EXPECT_EQ(found.length, 10);
  tree.check(0);
}

TEST(SglangHostTier, WhatIsNotModelledIsRefused) {
  SchedulerConfig config = tiered(200, WritePolicy::kWriteBack);
  config.rules = rules_for(Version{{0, 5, 19}});
  EXPECT_THROW(Scheduler{config}, ConfigError);
  config = tiered(200, WritePolicy::kWriteBack);
  config.disable_radix_cache = true;
  EXPECT_THROW(Scheduler{config}, ConfigError);
  EXPECT_EQ(write_policy_of("write_through_selective"), WritePolicy::kWriteThroughSelective);
  EXPECT_FALSE(write_policy_of("write_around"));
}

}  // namespace
}  // namespace oomcast::sglang
