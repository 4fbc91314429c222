// A prefill and a decode instance, and a host tier, by hand.
#include <gtest/gtest.h>

#include <vector>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/scheduler.hpp"

namespace oomcast::vllm {
namespace {

using Remote = KvTransferParams::Remote;

SchedulerConfig config_of(ConnectorConfig::Role role) {
  SchedulerConfig config;
  config.num_gpu_blocks = Blocks{11};  // 10 blocks of 16 tokens
  config.max_model_len = Tokens{256};
  config.connector = ConnectorConfig{};
  config.connector->role = role;
  return config;
}

SchedulerConfig offloading(std::int64_t chunks) {
  SchedulerConfig config = config_of(ConnectorConfig::Role::kBoth);
  config.connector->kind = ConnectorConfig::Kind::kOffloading;
  config.connector->host_chunks = chunks;
  return config;
}

RequestSpec request(RequestId id, std::int64_t prompt, std::int64_t output, Remote remote) {
  RequestSpec spec;
  spec.id = id;
  spec.prompt_len = Tokens{prompt};
  spec.max_output = Tokens{output};
  spec.transfer.remote = remote;
  return spec;
}

TransferReport received(RequestId id, bool failed = false) {
  TransferReport report;
  report.received.push_back({id, failed, {}});
  return report;
}

TEST(Nixl, ADecodeInstancePullsThePromptAndComputesItsLastToken) {
  Scheduler scheduler(config_of(ConnectorConfig::Role::kConsumer));
  scheduler.add(request(7, 40, 2, Remote::kPrefill));
  const StepPlan& plan = scheduler.schedule();
  ASSERT_EQ(plan.transfers.receives.size(), 1U);
  EXPECT_EQ(plan.transfers.receives.front().tokens, Tokens{40});
  EXPECT_EQ(plan.transfers.receives.front().blocks, (BlockLists{{1, 2, 3}}));
  EXPECT_EQ(plan.tokens, Tokens{0});
  scheduler.complete();
  EXPECT_EQ(scheduler.transfers().remote, 1);
  EXPECT_EQ(scheduler.transfers().remote_blocks, Blocks{3});

  EXPECT_EQ(scheduler.schedule().tokens, Tokens{0});  // nothing arrived yet
  scheduler.complete(received(7));
  const StepPlan& taken_up = scheduler.schedule();
  EXPECT_EQ(taken_up.tokens, Tokens{1});
  ASSERT_EQ(taken_up.admitted.size(), 1U);
  EXPECT_EQ(taken_up.admitted.front().hit, Tokens{39});
  scheduler.complete();
}

TEST(Nixl, AFailedReceiveEndsTheRequestOrIsComputedHere) {
  for (const bool recompute : {false, true}) {
    SchedulerConfig config = config_of(ConnectorConfig::Role::kConsumer);
    config.connector->load_failure_policy =
        recompute ? ConnectorConfig::LoadFailure::kRecompute : ConnectorConfig::LoadFailure::kFail;
    Scheduler scheduler(config);
    scheduler.add(request(7, 40, 2, Remote::kPrefill));
    scheduler.schedule();
    const StepOutput& output = scheduler.complete(received(7, true));
    EXPECT_EQ(output.failed, recompute ? std::vector<RequestId>{} : std::vector<RequestId>{7});
    EXPECT_EQ(scheduler.blocks().used, recompute ? Blocks{3} : Blocks{0});
    EXPECT_EQ(scheduler.schedule().tokens, recompute ? Tokens{40} : Tokens{0});
    scheduler.check_conservation();
  }
}

TEST(Nixl, ATransferInFlightKeepsItsBlocksThroughAnAbort) {
  Scheduler scheduler(config_of(ConnectorConfig::Role::kConsumer));
  scheduler.add(request(7, 40, 2, Remote::kPrefill));
  scheduler.schedule();
  EXPECT_TRUE(scheduler.abort(7).known);
  EXPECT_FALSE(scheduler.abort(7).known);
  EXPECT_EQ(scheduler.blocks().used, Blocks{3});
  EXPECT_FALSE(scheduler.idle());
  scheduler.complete(received(7));
  EXPECT_EQ(scheduler.blocks().used, Blocks{0});
  scheduler.schedule();
  EXPECT_EQ(scheduler.transfers().held, 0);
}

TEST(Nixl, APrefillInstanceHoldsBlocksUntilTheyAreSent) {
  Scheduler scheduler(config_of(ConnectorConfig::Role::kProducer));
  scheduler.add(request(7, 40, 1, Remote::kDecode));
  EXPECT_EQ(scheduler.schedule().tokens, Tokens{40});
  const StepOutput& output = scheduler.complete();
  ASSERT_EQ(output.handoffs.size(), 1U);
  EXPECT_EQ(output.handoffs.front().tokens, Tokens{40});
  EXPECT_EQ(output.handoffs.front().blocks, (BlockLists{{1, 2, 3}}));
  EXPECT_EQ(scheduler.running(), 0);
  EXPECT_EQ(scheduler.transfers().held_blocks, Blocks{3});
  EXPECT_EQ(scheduler.schedule().transfers.sends, std::vector<RequestId>{7});
  TransferReport sent;
  sent.sent.push_back(7);
  scheduler.complete(sent);
  EXPECT_EQ(scheduler.blocks().used, Blocks{0});
  EXPECT_TRUE(scheduler.idle());
}

TEST(Offloading, AnEvictedPromptComesBackFromTheHost) {
  Scheduler scheduler(offloading(20));
  const std::vector<ContentSegment> prompt{{5, Tokens{64}}};
  RequestSpec first = request(1, 64, 1, Remote::kNone);
  first.prompt = prompt;
  scheduler.add(first);
  const StepPlan& plan = scheduler.schedule();
  ASSERT_EQ(plan.transfers.stores.size(), 1U);
  EXPECT_EQ(plan.transfers.stores.front().blocks, (BlockIds{1, 2, 3, 4}));
  EXPECT_EQ(plan.transfers.stores.front().chunks, (std::vector<std::int64_t>{0, 1, 2, 3}));
  TransferReport stored;
  stored.jobs.push_back(plan.transfers.stores.front().job);
  scheduler.complete(stored);

  scheduler.add(request(2, 159, 1, Remote::kNone));  // takes all ten blocks
  const StepPlan& other = scheduler.schedule();
  ASSERT_EQ(other.transfers.stores.size(), 1U);
  TransferReport also_stored;
  also_stored.jobs.push_back(other.transfers.stores.front().job);
  scheduler.complete(also_stored);

  RequestSpec again = request(3, 70, 1, Remote::kNone);
  again.prompt = prompt;
  scheduler.add(again);
  const StepPlan& loading = scheduler.schedule();
  ASSERT_EQ(loading.transfers.loads.size(), 1U);
  const LoadJob load = loading.transfers.loads.front();
  EXPECT_EQ(load.tokens, Tokens{64});
  EXPECT_EQ(load.chunks, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_FALSE(load.synchronous);
  TransferReport loaded;
  loaded.jobs.push_back(load.job);
  scheduler.complete(loaded);
  EXPECT_EQ(scheduler.schedule().tokens, Tokens{6});
}

// 0.14 to 0.20: 64 tokens stored with the first step; they can be loaded, and the four blocks are
// free, once a worker that was told of the end has reported it.
TEST(Offloading, WhatARequestStoredWaitsForItsEndBefore021) {
  SchedulerConfig config = offloading(20);
  config.enable_prefix_caching = false;
  config.connector->stores_end_with_request = true;
  Scheduler scheduler(config);
  const std::vector<ContentSegment> prompt{{5, Tokens{64}}};
  RequestSpec first = request(1, 64, 1, Remote::kNone);
  first.prompt = prompt;
  scheduler.add(first);
  TransferReport stored;
  stored.jobs.push_back(scheduler.schedule().transfers.stores.front().job);
  EXPECT_EQ(scheduler.complete(stored).finished, std::vector<RequestId>{1});
  EXPECT_EQ(scheduler.transfers().held_blocks, Blocks{4});

  RequestSpec second = first;
  second.id = 2;
  scheduler.add(second);
  const StepPlan& told = scheduler.schedule();
  EXPECT_EQ(told.transfers.sends, std::vector<RequestId>{1});
  EXPECT_TRUE(told.transfers.loads.empty());
  EXPECT_EQ(told.tokens, Tokens{64});
  EXPECT_TRUE(told.transfers.stores.empty());  // being written already
  TransferReport sent;
  sent.sent.push_back(1);
  scheduler.complete(sent);
  EXPECT_EQ(scheduler.transfers().held_blocks, Blocks{0});

  RequestSpec third = first;
  third.id = 3;
  scheduler.add(third);
  const StepPlan& loading = scheduler.schedule();
  EXPECT_TRUE(loading.transfers.sends.empty());  // the second stored nothing
  ASSERT_EQ(loading.transfers.loads.size(), 1U);
  EXPECT_EQ(loading.transfers.loads.front().tokens, Tokens{64});
}

// Two batches in flight: the token that fills a chunk is sampled a step after that is planned. Its
// chunk is stored then, or in 0.14 and 0.15 not at all.
TEST(Offloading, ChunksAheadOfTheirTokensArePassedOverBefore016) {
  for (const bool skips : {false, true}) {
    SchedulerConfig config = offloading(20);
    config.async_scheduling = true;
    config.connector->offload_prompt_only = false;
    config.connector->skips_unsampled_chunks = skips;
    Scheduler scheduler(config);
    scheduler.add(request(1, 20, 20, Remote::kNone));
    std::size_t blocks = 0;
    for (int round = 0; round < 21; ++round) {
      TransferReport report;
      while (scheduler.batches_in_flight() < scheduler.depth()) {
        for (const StoreJob& store : scheduler.schedule().transfers.stores) {
          blocks += store.blocks.size();
          report.jobs.push_back(store.job);
        }
      }
      scheduler.complete(report);
    }
    EXPECT_EQ(blocks, skips ? 1U : 2U);
  }
}

// Ten blocks: a request grows to its seventh while four wait for KV from the host, and is
// preempted; it goes to the front. Up to 0.17 it holds up the one behind it whose KV has come.
TEST(Offloading, TransfersAreLookedAtFirstFrom018) {
  for (const bool first_looked_at : {false, true}) {
    SchedulerConfig config = offloading(40);
    config.rules.transfers_queue_first = first_looked_at;
    config.scheduler_reserve_full_isl = false;
    Scheduler scheduler(config);
    const std::vector<ContentSegment> prompt{{5, Tokens{64}}};
    RequestSpec before = request(1, 64, 1, Remote::kNone);
    before.prompt = prompt;
    for (const RequestSpec& spec : {before, request(2, 159, 1, Remote::kNone)}) {
      scheduler.add(spec);
      TransferReport stored;
      stored.jobs.push_back(scheduler.schedule().transfers.stores.front().job);
      scheduler.complete(stored);
    }
    scheduler.add(request(3, 90, 20, Remote::kNone));
    TransferReport stored;
    stored.jobs.push_back(scheduler.schedule().transfers.stores.front().job);
    scheduler.complete(stored);
    RequestSpec loading = request(4, 70, 1, Remote::kNone);
    loading.prompt = prompt;
    scheduler.add(loading);
    TransferReport loaded;
    for (int step = 0; step < 30; ++step) {
      const StepPlan& plan = scheduler.schedule();
      for (const LoadJob& load : plan.transfers.loads) {
        loaded.jobs.push_back(load.job);
      }
      if (!plan.preempted.empty()) {
        EXPECT_EQ(plan.preempted, std::vector<RequestId>{3});
        break;
      }
      scheduler.complete();
    }
    ASSERT_EQ(loaded.jobs.size(), 1U);
    scheduler.complete(loaded);
    const StepPlan& plan = scheduler.schedule();
    ASSERT_EQ(plan.admitted.size(), first_looked_at ? 1U : 0U);
    if (first_looked_at) {
      EXPECT_EQ(plan.admitted.front().id, 4);
    }
    scheduler.complete();
  }
}

TEST(Connectors, SettingsThatCannotWorkAreNamedTogether) {
  SchedulerConfig config = offloading(0);
  config.connector->blocks_per_chunk = 0;
  try {
    const Scheduler scheduler(config);
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("host chunks"), std::string::npos) << text;
    EXPECT_NE(text.find("blocks_per_chunk"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace oomcast::vllm
