// Rules of SGLang's scheduler, each with the arithmetic on paper.
#include "sim/engines/sglang/scheduler.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"

namespace oomcast::sglang {
namespace {

SchedulerConfig config_of(std::int64_t pool, Version version = Version{{0, 5, 23}}) {
  SchedulerConfig config;
  config.pool_tokens = Tokens{pool};
  config.context_length = Tokens{100000};
  config.max_running_requests = 64;
  config.disable_overlap_schedule = true;
  config.detail = true;
  config.rules = rules_for(version);
  return config;
}

constexpr Version kOld{{0, 5, 8}};

using Ids = std::vector<RequestId>;

class Engine {
 public:
  explicit Engine(const SchedulerConfig& config) : scheduler(config) {}

  Added add(RequestId id, std::int64_t prompt, std::int64_t most) {
    RequestSpec spec;
    spec.id = id;
    spec.tie_order = id;
    spec.prompt_len = Tokens{prompt};
    spec.max_output = Tokens{most};
    return scheduler.add(spec);
  }
  Added add(RequestId id, const std::vector<ContentSegment>& prompt, std::int64_t most) {
    RequestSpec spec;
    spec.id = id;
    for (const ContentSegment& segment : prompt) {
      spec.prompt_len += segment.length;
    }
    spec.prompt = prompt;
    spec.max_output = Tokens{most};
    spec.output_content = 1000 + id;
    return scheduler.add(spec);
  }
  const StepPlan& round() {
    const StepPlan& plan = scheduler.schedule();
    output = scheduler.batches_in_flight() == scheduler.depth() ? &scheduler.complete() : nullptr;
    scheduler.check_conservation();
    return plan;
  }
  std::vector<RequestId> finished() const {
    std::vector<RequestId> ids;
    for (const FinishedRequest& request : output->finished) {
      ids.push_back(request.id);
    }
    return ids;
  }

  Scheduler scheduler;
  const StepOutput* output = nullptr;
};

TEST(SglangIntake, WhatBecomesOfRequests) {
  Engine engine(config_of(100));
  EXPECT_EQ(engine.add(1, 0, 5), Added::kEmptyPrompt);
  EXPECT_EQ(engine.add(1, 5, -1), Added::kNoOutput);
  EXPECT_EQ(engine.add(1, 5, 5), Added::kQueued);
  EXPECT_EQ(engine.add(1, 5, 5), Added::kDuplicateId);
  // max_req_len is 99, max_req_input_len 94: from there on a prompt runs as one token.
  EXPECT_EQ(engine.add(2, 93, 5), Added::kQueued);
  EXPECT_EQ(engine.add(3, 94, 5), Added::kQueuedToAbort);
  EXPECT_FALSE(engine.scheduler.abort(9).known);
}

TEST(SglangIntake, ATooLongPromptRunsOneTokenAndAborts) {
  Engine engine(config_of(100));
  engine.add(1, 94, 5);
  const StepPlan& plan = engine.round();
  ASSERT_EQ(plan.extended.size(), 1U);
  EXPECT_EQ(plan.extended[0].tokens, Tokens{1});
  ASSERT_EQ(engine.output->finished.size(), 1U);
  EXPECT_EQ(engine.output->finished[0].reason, FinishReason::kAbort);
  EXPECT_EQ(engine.scheduler.slots().cached, Tokens{1});  // the one token is published
}

TEST(SglangIntake, AFullQueueDropsTheNewcomerOrTheLeastPreferred) {
  SchedulerConfig config = config_of(1000);
  config.max_queued_requests = 2;
  Engine plain(config);
  plain.add(1, 5, 5);
  plain.add(2, 5, 5);
  EXPECT_EQ(plain.add(3, 5, 5), Added::kQueueFull);
  EXPECT_EQ(plain.round().aborted, Ids{3});

  config.enable_priority_scheduling = true;
  Engine ranked(config);
  for (const auto& [id, priority] : {std::pair{1, 5}, {2, 3}, {3, 4}, {4, 1}}) {
    RequestSpec spec;
    spec.id = static_cast<RequestId>(id);
    spec.priority = priority;  // high values first
    spec.prompt_len = Tokens{5};
    spec.max_output = Tokens{5};
    ranked.scheduler.add(spec);
  }
  EXPECT_EQ(ranked.round().aborted, (Ids{2, 4}));
}

// The second request needs prompt + max_new + a page, and must be below what is left: 100 slots, 10
// hold the first prompt, whose other 19 tokens are reserved in full.
TEST(SglangAdmission, FitsAtNAndNotAtOneMore) {
  for (const auto& [version, fits] : {std::pair{Version{{0, 5, 23}}, 39},
                                      {Version{{0, 5, 11}}, 39},
                                      {Version{{0, 5, 9}}, 40},
                                      {kOld, 40}}) {
    for (const std::int64_t more : {0, 1}) {
      SchedulerConfig config = config_of(100, version);
      config.schedule_conservativeness = 2;  // ratio min(0.7 * 2, 1)
      Engine engine(config);
      engine.add(1, 10, 20);
      engine.round();
      engine.add(2, 30, fits + more);
      EXPECT_EQ(engine.round().kind, more == 0 ? Kind::kPrefill : Kind::kDecode) << fits;
    }
  }
}

// ignore_eos requests are reserved in full whatever the ratio, since 0.5.23.
TEST(SglangAdmission, FixedOutputsAreReservedInFull) {
  for (const auto& [version, admitted] : {std::pair{Version{{0, 5, 23}}, false}, {kOld, true}}) {
    Engine engine(config_of(100, version));
    RequestSpec spec;
    spec.id = 1;
    spec.prompt_len = Tokens{10};
    spec.max_output = Tokens{51};
    spec.ignore_eos = true;
    engine.scheduler.add(spec);
    engine.round();
    engine.add(2, 20, 25);  // 45 or 46 of 90 - 50, or of 90 - 0.7 * 50
    EXPECT_EQ(engine.round().kind == Kind::kPrefill, admitted);
  }
}

TEST(SglangAdmission, ALongPromptGoesInChunksAndPrefillWins) {
  SchedulerConfig config = config_of(1000);
  config.chunked_prefill_size = Tokens{64};
  Engine engine(config);
  engine.add(1, 10, 50);
  engine.round();
  engine.add(2, 150, 5);
  engine.add(3, 30, 5);
  for (const std::int64_t tokens : {64, 64}) {
    const StepPlan& plan = engine.round();
    EXPECT_EQ(plan.kind, Kind::kPrefill);
    EXPECT_EQ(plan.prefill_tokens, Tokens{tokens});
    EXPECT_EQ(plan.chunked, RequestId{2});
  }
  const StepPlan& last = engine.round();  // 22 left, and room for the 30 of the next
  ASSERT_EQ(last.extended.size(), 2U);
  EXPECT_EQ(last.extended[0].prefix, Tokens{128});
  EXPECT_EQ(last.extended[0].tokens, Tokens{22});
  EXPECT_EQ(last.extended[1].tokens, Tokens{30});
  EXPECT_FALSE(last.chunked);
  const StepPlan& decode = engine.round();
  EXPECT_EQ(decode.decoded, (Ids{1, 2, 3}));
  EXPECT_EQ(decode.decode_context.count(), 11 + 151 + 31);
}

// Chunks end at a page: 0.5.23 aligns the end, which matters once a hit is not a multiple of a
// chunk.
TEST(SglangAdmission, MaxPrefillTokensStopsAfterWhoUsesItUp) {
  SchedulerConfig config = config_of(1000);
  config.max_prefill_tokens = Tokens{50};
  for (const bool chunks : {false, true}) {
    config.chunked_prefill_size = chunks ? std::optional<Tokens>{Tokens{500}} : std::nullopt;
    Engine engine(config);
    for (const RequestId id : Ids{1, 2, 3}) {
      engine.add(id, 30, 5);
    }
    // Without chunking 30 + 30 is too much; with it the second uses the budget up.
    EXPECT_EQ(engine.round().extended.size(), chunks ? 2U : 1U);
  }
}

TEST(SglangPrefixCache, ARepeatHitsAllButOneToken) {
  Engine engine(config_of(1000));
  engine.add(1, {{7, Tokens{100}}}, 3);
  while (!engine.scheduler.idle()) {
    engine.round();
  }
  engine.add(2, {{7, Tokens{100}}}, 3);
  engine.add(3, {{7, Tokens{60}}, {8, Tokens{40}}}, 3);
  const StepPlan& plan = engine.round();
  ASSERT_EQ(plan.admitted.size(), 2U);
  EXPECT_EQ(plan.admitted[0].hit, Tokens{99});
  EXPECT_EQ(plan.admitted[1].hit, Tokens{60});
}

// Two requests compute one prefix at the same time: the second copy goes when it publishes.
TEST(SglangPrefixCache, ASecondCopyIsFreedOnPublication) {
  Engine engine(config_of(1000));
  engine.add(1, {{7, Tokens{100}}}, 5);
  engine.add(2, {{7, Tokens{100}}, {8, Tokens{20}}}, 5);
  const StepPlan& plan = engine.round();
  EXPECT_EQ(plan.slots.free, Tokens{1000 - 220});
  EXPECT_EQ(engine.scheduler.slots().free, Tokens{1000 - 120});
}

// Outputs are cached since 0.5.23: prompt 50 and the 4 of 5 outputs whose KV was written.
TEST(SglangPrefixCache, OutputsOfTheNextTurn) {
  for (const auto& [version, hit] : {std::pair{Version{{0, 5, 23}}, 54}, {kOld, 50}}) {
    Engine engine(config_of(1000, version));
    engine.add(1, {{7, Tokens{50}}}, 5);
    for (int i = 0; i < 5; ++i) {
      engine.round();
    }
    ASSERT_EQ(engine.scheduler.running(), 0);
    engine.add(2, {{7, Tokens{50}}, {1001, Tokens{5}}, {9, Tokens{10}}}, 5);
    EXPECT_EQ(engine.round().admitted[0].hit, Tokens{hit});
  }
}

// Outputs are evicted before their prompt: the leaf of 20 outputs goes, the prompt stays a hit.
TEST(SglangPrefixCache, OutputsGoBeforeTheirPrompt) {
  Engine engine(config_of(200));
  engine.add(1, {{7, Tokens{50}}}, 21);
  while (!engine.scheduler.idle()) {
    engine.round();
  }
  EXPECT_EQ(engine.scheduler.slots().cached, Tokens{70});
  engine.add(2, 135, 1);  // 130 are free, 5 are short
  engine.round();
  engine.add(3, {{7, Tokens{50}}, {9, Tokens{3}}}, 1);
  EXPECT_EQ(engine.round().admitted[0].hit, Tokens{50});
}

// Four decode in a pool that runs out. Fewest outputs, then the longest prompt, go back to the end
// of the queue; one at least. The ratio becomes (outputs + 20 each) / (max_new + 1) of the others,
// who stay in the order in which they would have gone.
TEST(SglangRetraction, TheYoungestWithTheLongestPromptGoesFirst) {
  SchedulerConfig config = config_of(200);
  config.disable_radix_cache = true;
  config.schedule_conservativeness = 0.01;
  Engine engine(config);
  const std::vector<std::pair<std::int64_t, std::int64_t>> requests{
      {40, 100}, {30, 60}, {35, 60}, {32, 60}};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    engine.add(i + 1, requests[i].first, requests[i].second);
    ASSERT_EQ(engine.round().kind, Kind::kPrefill);
  }
  // 137 in prompts; 4 a step: 15 decodes leave 3 slots for 4 rows. All have 16 tokens.
  for (int i = 0; i < 15; ++i) {
    ASSERT_TRUE(engine.round().retracted.empty());
  }
  EXPECT_EQ(engine.scheduler.slots().free, Tokens{3});
  const StepPlan& plan = engine.round();
  EXPECT_EQ(plan.retracted, Ids{1});
  EXPECT_EQ(plan.decoded, (Ids{2, 4, 3}));
  EXPECT_EQ(engine.scheduler.slots().free, Tokens{3 + 55 - 3});
  EXPECT_DOUBLE_EQ(engine.scheduler.new_token_ratio(), (3 * 16 + 3 * 20) / (3 * 60 + 1.0));
  EXPECT_EQ(engine.scheduler.waiting(), 1);
}

// Five decodes of the first come before the second prompt. 40 in prompts and 5 then: 27 decodes of
// both leave 1 slot for 2 rows. The second has fewer outputs, so it goes although its prompt is
// shorter.
TEST(SglangRetraction, FewestOutputsGoFirst) {
  SchedulerConfig config = config_of(100);
  config.disable_radix_cache = true;
  config.schedule_conservativeness = 0.01;
  Engine engine(config);
  engine.add(1, 30, 60);
  for (int i = 0; i < 6; ++i) {
    engine.round();
  }
  engine.add(2, 10, 40);
  ASSERT_EQ(engine.round().kind, Kind::kPrefill);
  for (int i = 0; i < 27; ++i) {
    ASSERT_TRUE(engine.round().retracted.empty());
  }
  EXPECT_EQ(engine.scheduler.slots().free, Tokens{1});
  EXPECT_EQ(engine.round().retracted, Ids{2});
}

TEST(SglangRatio, DecaysPerDecodeStepAndComesBackWhenIdle) {
  Engine engine(config_of(1000));
  engine.add(1, 10, 4);
  engine.round();
  EXPECT_DOUBLE_EQ(engine.scheduler.new_token_ratio(), 0.7);  // a prefill does not decay it
  engine.round();
  EXPECT_DOUBLE_EQ(engine.scheduler.new_token_ratio(), 0.7 - (0.7 - 0.7 * 0.14) / 600);
  engine.round();
  engine.round();
  EXPECT_EQ(engine.finished(), Ids{1});
  EXPECT_LT(engine.scheduler.new_token_ratio(), 0.7);
  engine.round();  // nothing to do
  EXPECT_DOUBLE_EQ(engine.scheduler.new_token_ratio(), 0.7);
}

// Results come a round late; who must end with the result in flight is left out of the next decode.
TEST(SglangOverlap, ACertainFinishIsNotDecodedAgain) {
  for (const auto& [version, wasted] : {std::pair{Version{{0, 5, 23}}, false}, {kOld, true}}) {
    SchedulerConfig config = config_of(1000, version);
    config.disable_overlap_schedule = false;
    Engine engine(config);
    engine.add(1, 10, 3);
    engine.add(2, 10, 9);
    engine.round();  // prefill
    EXPECT_EQ(engine.output, nullptr);
    EXPECT_EQ(engine.round().decoded.size(), 2U);  // result of the prefill: 1 token each
    EXPECT_EQ(engine.round().decoded.size(), 2U);  // 2 tokens each
    const StepPlan& plan = engine.round();         // the third token of request 1 is in flight
    EXPECT_EQ(plan.decoded, wasted ? (Ids{1, 2}) : Ids{2});
    EXPECT_EQ(engine.finished(), Ids{1});
  }
}

TEST(SglangOverlap, AnEndTokenIsSeenOneDecodeLate) {
  SchedulerConfig config = config_of(1000);
  config.disable_overlap_schedule = false;
  Engine engine(config);
  RequestSpec spec;
  spec.id = 1;
  spec.prompt_len = Tokens{10};
  spec.max_output = Tokens{50};
  spec.stop_after = Tokens{2};
  engine.scheduler.add(spec);
  engine.round();
  engine.round();
  EXPECT_EQ(engine.round().decoded, Ids{1});  // token 2, the end, is in flight: this one is wasted
  ASSERT_EQ(engine.finished(), Ids{1});
  EXPECT_EQ(engine.output->finished[0].reason, FinishReason::kStop);
  engine.round();
  EXPECT_EQ(engine.output->sampled, Tokens{});
  EXPECT_EQ(engine.scheduler.slots().used, Tokens{});
}

TEST(SglangFinish, AnEndTokenAtTheLimit) {
  for (const auto& [version, reason] :
       {std::pair{Version{{0, 5, 23}}, FinishReason::kStop}, {kOld, FinishReason::kLength}}) {
    Engine engine(config_of(1000, version));
    RequestSpec spec;
    spec.id = 1;
    spec.prompt_len = Tokens{10};
    spec.max_output = Tokens{1};
    spec.stop_after = Tokens{1};
    engine.scheduler.add(spec);
    engine.round();
    EXPECT_EQ(engine.output->finished[0].reason, reason);
  }
}

TEST(SglangPriority, AMuchBetterRequestTakesARunningOnesPlace) {
  for (const std::int64_t priority : {20, 21}) {
    SchedulerConfig config = config_of(1000);
    config.enable_priority_scheduling = true;
    config.max_running_requests = 2;
    Engine engine(config);
    const auto add = [&](RequestId id, std::int64_t value) {
      RequestSpec spec;
      spec.id = id;
      spec.priority = value;
      spec.prompt_len = Tokens{10};
      spec.max_output = Tokens{30};
      engine.scheduler.add(spec);
    };
    add(1, 15);
    add(2, 10);
    engine.round();
    add(3, priority);  // more than 10 above the least preferred
    const StepPlan& plan = engine.round();
    EXPECT_EQ(plan.preempted, priority == 21 ? Ids{2} : Ids{});
    EXPECT_EQ(plan.kind, priority == 21 ? Kind::kPrefill : Kind::kDecode);
  }
}

// Requests that share an unknown prefix: one goes first, the others are put last and then hit it.
TEST(SglangPolicy, LongestPrefixMatchDefersDuplicates) {
  SchedulerConfig config = config_of(1000);
  config.schedule_policy = SchedulePolicy::kLpm;
  config.chunked_prefill_size = Tokens{150};
  Engine engine(config);
  engine.add(1, {{7, Tokens{100}}}, 3);
  engine.add(2, {{7, Tokens{100}}, {8, Tokens{10}}}, 3);
  engine.add(3, {{9, Tokens{50}}}, 3);
  const StepPlan& first = engine.round();
  ASSERT_EQ(first.extended.size(), 2U);
  EXPECT_EQ(first.extended[1].id, 3U);
  const StepPlan& second = engine.round();
  ASSERT_EQ(second.admitted.size(), 1U);
  EXPECT_EQ(second.admitted[0].hit, Tokens{100});
}

TEST(SglangAbort, WaitingRunningAndHalfPrefilled) {
  SchedulerConfig config = config_of(1000);
  config.chunked_prefill_size = Tokens{50};
  Engine engine(config);
  engine.add(1, 40, 50);
  engine.round();
  engine.add(2, 200, 50);
  engine.round();  // a chunk of 50
  engine.add(3, 40, 50);
  engine.scheduler.abort(1);
  engine.scheduler.abort(2);
  engine.scheduler.abort(3);
  const StepPlan& plan = engine.round();
  EXPECT_EQ(plan.aborted, (Ids{3, 2}));
  EXPECT_EQ(plan.kind, Kind::kDecode);  // the running one decodes once more
  ASSERT_EQ(engine.finished(), Ids{1});
  EXPECT_EQ(engine.output->finished[0].reason, FinishReason::kAbort);
  EXPECT_EQ(engine.scheduler.slots().used, Tokens{});
}

// 0.5.23 wants a page on top: 50 + 16 is never below 64. Up to 0.5.8 it does not.
TEST(SglangStall, ARequestThatNeverFitsWaitsForEver) {
  SchedulerConfig config = config_of(64);
  config.page_size = Tokens{16};
  Engine engine(config);
  engine.add(1, 50, 50);
  engine.round();
  engine.round();
  ASSERT_TRUE(engine.scheduler.stall());
  EXPECT_EQ(engine.scheduler.stall()->head, 1U);
  EXPECT_EQ(engine.scheduler.stall()->available, Tokens{64});
  engine.scheduler.abort(1);
  EXPECT_FALSE(engine.scheduler.stall());

  config.rules = rules_for(kOld);
  Engine old(config);
  old.add(1, 50, 50);
  EXPECT_EQ(old.round().kind, Kind::kPrefill);
}

// Ten decode rows take 10 slots in each mixed step, which nobody reserves, and a prompt of 60 goes
// on with 10 at a time: 78, 58, 38, 18, 0 free. Then the chunk is forced, and the engine dies.
TEST(SglangError, AForcedChunkWithoutRoomKillsTheEngine) {
  SchedulerConfig config = config_of(100, kOld);
  config.disable_radix_cache = true;
  config.enable_mixed_chunk = true;
  config.chunked_prefill_size = Tokens{20};
  config.schedule_conservativeness = 0;
  Engine engine(config);
  for (RequestId id = 0; id < 10; ++id) {
    engine.add(id, 1, 20);
  }
  for (const std::int64_t picked : {4, 4, 2}) {
    ASSERT_EQ(engine.round().prefill_requests, picked);
  }
  ASSERT_EQ(engine.scheduler.slots().free, Tokens{78});
  engine.add(10, 60, 1);
  for (const std::int64_t free : {58, 38, 18, 0}) {
    ASSERT_EQ(engine.round().slots.free, Tokens{free});
  }
  EXPECT_EQ(engine.scheduler.schedule().error, EngineError::kPrefillOutOfMemory);
  engine.scheduler.complete();
  EXPECT_EQ(engine.scheduler.schedule().kind, Kind::kIdle);  // and it stays dead
}

// One recorded step: prompt 150, window 127, window pool 1024. 22 slots slide away when
// the prompt is published; 128 are kept, of which a lock holds 127.
TEST(SglangWindow, WhatAPromptKeeps) {
  SchedulerConfig config = config_of(4096);
  config.swa_pool_tokens = Tokens{1024};
  config.sliding_window = Tokens{127};
  config.chunked_prefill_size = Tokens{512};
  Engine engine(config);
  engine.add(1, 150, 300);
  const StepPlan& plan = engine.round();
  EXPECT_EQ(plan.window_slots.free, Tokens{1024 - 150});
  EXPECT_EQ(engine.scheduler.window_slots().free, Tokens{1024 - 150 + 22});
  EXPECT_EQ(engine.scheduler.window_slots().cached, Tokens{1});
  EXPECT_EQ(engine.scheduler.slots().cached, Tokens{});
}

TEST(SglangRoles, ADecodeServerKeepsRoomForWhoIsActive) {
  SchedulerConfig config = config_of(1000);
  config.role = Role::kDecode;
  config.disable_radix_cache = true;
  config.num_reserved_decode_tokens = Tokens{100};
  Engine engine(config);
  for (const RequestId id : Ids{1, 2, 3, 4}) {
    engine.add(id, 250, 10);
  }
  // 250 + 100 <= 1000; 350 <= 750 - 100; 350 <= 500 - 200 does not hold.
  EXPECT_EQ(engine.round().transfers.preallocated, (Ids{1, 2}));
  EXPECT_EQ(engine.scheduler.slots().used, Tokens{500});  // held while the KV is on its way
  EXPECT_EQ(engine.scheduler.asking(), 2);
  engine.scheduler.transfer_done(2);
  const StepPlan& plan = engine.round();
  EXPECT_EQ(plan.transfers.arrived, Ids{2});
  EXPECT_EQ(plan.transfers.joined, Ids{2});
  EXPECT_EQ(plan.decoded, Ids{2});
}

TEST(SglangRoles, APrefillServerHoldsSlotsUntilTheyAreSent) {
  SchedulerConfig config = config_of(1000);
  config.role = Role::kPrefill;
  Engine engine(config);
  engine.add(1, 100, 50);
  EXPECT_EQ(engine.round().transfers.bootstrapped, Ids{1});
  EXPECT_EQ(engine.output->sending, Ids{1});
  engine.round();
  EXPECT_EQ(engine.scheduler.slots().used, Tokens{100});
  engine.scheduler.transfer_done(1);
  EXPECT_EQ(engine.round().kind, Kind::kIdle);
  ASSERT_EQ(engine.finished(), Ids{1});
  EXPECT_EQ(engine.output->finished[0].output, Tokens{1});
  EXPECT_EQ(engine.scheduler.slots().cached, Tokens{100});
}

TEST(SglangRoles, RequestsWaitForTheHandshake) {
  SchedulerConfig config = config_of(1000);
  config.role = Role::kPrefill;
  Engine engine(config);
  RequestSpec spec;
  spec.id = 1;
  spec.prompt_len = Tokens{10};
  spec.max_output = Tokens{5};
  spec.awaits_handshake = true;
  engine.scheduler.add(spec);
  engine.add(2, 10, 5);
  EXPECT_EQ(engine.round().transfers.bootstrapped, Ids{2});  // nobody is held up
  engine.scheduler.handshake_done(1);
  EXPECT_EQ(engine.round().transfers.bootstrapped, Ids{1});
}

TEST(SglangConfig, AllProblemsAtOnce) {
  SchedulerConfig config = config_of(100);
  config.page_size = Tokens{16};
  config.max_running_requests = 0;
  config.chunked_prefill_size = Tokens{20};
  config.schedule_conservativeness = -1;
  config.swa_pool_tokens = Tokens{16};
  config.sliding_window = Tokens{0};
  Problems problems;
  check(config, "settings", problems);
  EXPECT_EQ(problems.found().size(), 5U);
  EXPECT_THROW(Scheduler{config}, ConfigError);
}

TEST(SglangConfig, NamesOfPolicies) {
  EXPECT_EQ(schedule_policy_of("dfs-weight"), SchedulePolicy::kDfsWeight);
  EXPECT_FALSE(schedule_policy_of("random"));
  EXPECT_EQ(eviction_policy_of("slru"), EvictionPolicy::kSlru);
  EXPECT_EQ(retraction_policy_of("priority"), RetractionPolicy::kPriority);
}

TEST(SglangSteady, JumpsToWhereSomethingHappens) {
  SchedulerConfig config = config_of(1000);
  config.detail = false;
  Engine engine(config);
  engine.add(1, 10, 100);
  engine.round();
  EXPECT_EQ(engine.scheduler.steady_steps(), 0);  // the prefill has still to join
  engine.round();
  EXPECT_EQ(engine.scheduler.steady_shape().first_context, Tokens{12});
  EXPECT_EQ(engine.scheduler.steady_steps(), 97);  // 2 of 100 are there, the last one is an end
  const SteadyJump& jump = engine.scheduler.advance_steady(97);
  EXPECT_EQ(jump.first_step, 2);
  EXPECT_EQ(jump.first.free, Tokens{1000 - 12});
  EXPECT_EQ(jump.last.free, Tokens{1000 - 108});
  EXPECT_EQ(engine.scheduler.steady_steps(), 0);
  engine.round();
  EXPECT_EQ(engine.finished(), Ids{1});
}

}  // namespace
}  // namespace oomcast::sglang
