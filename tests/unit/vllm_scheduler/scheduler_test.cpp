// Rules of the scheduler, one at a time, with the arithmetic beside them. Blocks have 16 tokens.
#include "sim/engines/vllm/scheduler.hpp"

#include <gtest/gtest.h>

namespace oomcast::vllm {
namespace {

SchedulerConfig config(std::int64_t blocks) {
  SchedulerConfig made;
  made.max_num_seqs = 8;
  made.max_num_batched_tokens = Tokens{256};
  made.max_model_len = Tokens{512};
  made.num_gpu_blocks = Blocks{blocks + 1};  // and the null block
  made.rules = rules_for(Version{{0, 33, 0}});
  return made;
}

RequestSpec request(RequestId id, std::int64_t prompt, std::int64_t output) {
  RequestSpec made;
  made.id = id;
  made.prompt_len = Tokens{prompt};
  made.max_output = Tokens{output};
  return made;
}

const StepOutput* round(Scheduler& scheduler) {
  scheduler.schedule();
  return scheduler.batches_in_flight() == scheduler.depth() ? &scheduler.complete() : nullptr;
}

std::int64_t rounds_until_idle(Scheduler& scheduler, std::int64_t limit) {
  std::int64_t rounds = 0;
  while (!scheduler.idle() && rounds < limit) {
    round(scheduler);
    ++rounds;
  }
  return rounds;
}

TEST(Scheduler, RefusesWhatTheFrontEndRefuses) {
  Scheduler scheduler(config(10));
  EXPECT_EQ(scheduler.add(request(1, 0, 5)), Added::kEmptyPrompt);
  EXPECT_EQ(scheduler.add(request(1, 512, 5)), Added::kPromptTooLong);
  EXPECT_EQ(scheduler.add(request(1, 511, 5)), Added::kQueued);
  EXPECT_EQ(scheduler.add(request(2, 10, 0)), Added::kNoOutput);
  EXPECT_EQ(scheduler.add(request(1, 10, 5)), Added::kDuplicateId);
  EXPECT_TRUE(scheduler.abort(1).known);
  EXPECT_FALSE(scheduler.abort(1).known);
  EXPECT_FALSE(scheduler.abort(99).known);
  EXPECT_TRUE(scheduler.idle());
}

TEST(Scheduler, APromptIsAdmittedAtItsBlocksAndNotAtOneLess) {
  // 160 tokens: 10 blocks.
  for (const std::int64_t blocks : {10, 9}) {
    Scheduler scheduler(config(blocks));
    scheduler.add(request(1, 160, 1));
    const StepPlan& plan = scheduler.schedule();
    EXPECT_EQ(plan.admitted.size(), blocks == 10 ? 1U : 0U);
    EXPECT_EQ(plan.tokens, Tokens{blocks == 10 ? 160 : 0});
  }
}

TEST(Scheduler, ARequestLargerThanThePoolWaitsForEverAndStopsThoseBehindIt) {
  Scheduler scheduler(config(9));
  scheduler.add(request(1, 160, 1));
  scheduler.add(request(2, 16, 1));
  for (int i = 0; i < 3; ++i) {
    round(scheduler);
    const Stall stall = scheduler.stall().value_or(Stall{});
    EXPECT_EQ(stall.head, 1U);
    EXPECT_EQ(stall.needed, Blocks{10});
    EXPECT_EQ(stall.available, Blocks{9});
  }
  EXPECT_EQ(scheduler.waiting(), 2);
  EXPECT_TRUE(scheduler.abort(1).known);
  round(scheduler);
  EXPECT_FALSE(scheduler.stall().has_value());
  EXPECT_TRUE(scheduler.idle());
}

TEST(Scheduler, OneTokenAStepEndsAfterMaxOutput) {
  // Step 0 computes the prompt and yields token 1; tokens 2 to 5 take a step each.
  Scheduler scheduler(config(10));
  scheduler.add(request(1, 20, 5));
  EXPECT_EQ(rounds_until_idle(scheduler, 100), 5);
  EXPECT_EQ(scheduler.blocks().free, Blocks{10});
}

TEST(Scheduler, GenerationStopsAtMaxModelLen) {
  // 500 + 12 = 512.
  Scheduler scheduler(config(40));
  scheduler.add(request(1, 500, 1000));
  EXPECT_EQ(rounds_until_idle(scheduler, 100), 2 + 11);  // the prompt takes two chunks of 256
}

TEST(Scheduler, ChunksFillTheBudgetBehindDecodes) {
  Scheduler scheduler(config(60));
  scheduler.add(request(1, 100, 50));
  round(scheduler);
  scheduler.add(request(2, 400, 5));
  const StepPlan& plan = scheduler.schedule();
  EXPECT_EQ(plan.decode_requests, 1);
  EXPECT_EQ(plan.decode_context, Tokens{101});
  EXPECT_EQ(plan.prefill_tokens, Tokens{255});
  EXPECT_EQ(plan.prefill_attention, 255 * 256 / 2);  // nothing cached yet
  EXPECT_EQ(plan.sampled_rows, 2);
  EXPECT_EQ(plan.sampling_requests, 1);  // the chunk yields nothing
  scheduler.complete();
  const StepPlan& next = scheduler.schedule();
  EXPECT_EQ(next.prefill_tokens, Tokens{145});
  EXPECT_EQ(next.prefill_attention, 145 * 255 + 145 * 146 / 2);
  EXPECT_EQ(next.sampling_requests, 2);
}

TEST(Scheduler, ThePrefixHitLeavesTheLastTokenToCompute) {
  // 64 tokens are 4 whole blocks; only 3 are hit, for the last token must be computed.
  const std::vector<ContentSegment> content{{7, Tokens{64}}};
  Scheduler scheduler(config(20));
  RequestSpec spec = request(1, 64, 1);
  spec.prompt = content;
  scheduler.add(spec);
  round(scheduler);
  spec.id = 2;
  scheduler.add(spec);
  const StepPlan& plan = scheduler.schedule();
  ASSERT_EQ(plan.admitted.size(), 1U);
  EXPECT_EQ(plan.admitted[0].hit, Tokens{48});
  EXPECT_EQ(plan.tokens, Tokens{16});
  scheduler.complete();
  spec.id = 3;
  spec.prompt_len = Tokens{65};  // one token more, and all four blocks count
  const std::vector<ContentSegment> longer{{7, Tokens{65}}};
  spec.prompt = longer;
  scheduler.add(spec);
  EXPECT_EQ(scheduler.schedule().admitted[0].hit, Tokens{64});
  EXPECT_EQ(scheduler.prefix_hit_tokens(), Tokens{48 + 64});
}

TEST(Scheduler, TheYoungestGoesWhenBlocksRunOut) {
  // Two prompts of 31 tokens take 2 blocks each of 4. Token 33 needs a third: nobody has one, so
  // the last to come gives up both of its own.
  Scheduler scheduler(config(4));
  scheduler.add(request(1, 31, 10));
  scheduler.add(request(2, 31, 10));
  round(scheduler);  // token 32 is sampled
  round(scheduler);  // computes position 31, the last of block 2
  const StepPlan& plan = scheduler.schedule();
  ASSERT_EQ(plan.preempted, std::vector<RequestId>{2});
  EXPECT_EQ(plan.decode_requests, 1);
  EXPECT_TRUE(plan.admitted.empty());  // no admission in a step that preempts
  EXPECT_EQ(plan.blocks.free, Blocks{1});
  EXPECT_EQ(scheduler.preemptions(), 1);
  scheduler.complete();
  EXPECT_LT(rounds_until_idle(scheduler, 100), 100);
}

TEST(Scheduler, APreemptedRequestFindsItsOwnBlocks) {
  // As above: request 2 leaves 2 blocks with 33 known tokens. One block is taken by request 1 (the
  // tail, which was freed first); the other is hit when it comes back.
  Scheduler scheduler(config(4));
  scheduler.add(request(1, 31, 10));
  scheduler.add(request(2, 31, 10));
  for (int i = 0; i < 3; ++i) {
    round(scheduler);
  }
  std::vector<Admission> back;
  for (int i = 0; i < 20 && back.empty(); ++i) {
    back = scheduler.schedule().admitted;
    scheduler.complete();
  }
  ASSERT_EQ(back.size(), 1U);
  EXPECT_TRUE(back[0].resumed);
  EXPECT_EQ(back[0].id, 2U);
  EXPECT_EQ(back[0].hit, Tokens{16});
}

TEST(Scheduler, TheWatermarkSparesTheFirstRequestOnly) {
  // int(0.25 * 21) = 5 blocks to keep. The first request has 10 of 20 and takes one more for its
  // next token, so 9 are free.
  SchedulerConfig settings = config(20);
  settings.watermark = 0.25;
  Scheduler scheduler(settings);
  scheduler.add(request(1, 160, 2));
  round(scheduler);
  scheduler.add(request(2, 64, 2));  // 4 + 5 <= 9
  EXPECT_EQ(scheduler.schedule().admitted.size(), 1U);
  scheduler.complete();
  Scheduler tight(settings);
  tight.add(request(1, 160, 2));
  round(tight);
  tight.add(request(2, 80, 2));  // 5 + 5 > 9
  EXPECT_TRUE(tight.schedule().admitted.empty());
}

TEST(Scheduler, AsyncSchedulingFreesOneStepLate) {
  SchedulerConfig settings = config(10);
  settings.async_scheduling = true;
  Scheduler scheduler(settings);
  EXPECT_EQ(scheduler.depth(), 2);
  scheduler.add(request(1, 20, 3));
  // Steps 0 to 2 compute tokens; step 3 schedules nothing and brings the last one.
  std::vector<std::int64_t> scheduled;
  while (!scheduler.idle()) {
    scheduled.push_back(scheduler.schedule().tokens.count());
    if (scheduler.batches_in_flight() == scheduler.depth()) {
      scheduler.complete();
    }
  }
  EXPECT_EQ(scheduled, (std::vector<std::int64_t>{20, 1, 1, 0}));
  EXPECT_EQ(scheduler.blocks().free, Blocks{10});
}

TEST(Scheduler, SteadyStepsEndBeforeTheFirstFinish) {
  Scheduler scheduler(config(30));
  scheduler.add(request(1, 20, 40));
  scheduler.add(request(2, 20, 30));
  EXPECT_EQ(scheduler.steady_steps(), 0);
  while (scheduler.steady_steps() == 0) {
    round(scheduler);
  }
  const std::int64_t steps = scheduler.steady_steps();
  EXPECT_EQ(scheduler.steady_steps(5), 5);
  const SteadyJump& jump = scheduler.advance_steady(steps);
  EXPECT_EQ(jump.decode_requests, 2);
  EXPECT_TRUE(jump.finished.empty());
  // Request 2 computes its last token in the next step.
  EXPECT_EQ(scheduler.steady_steps(), 0);
  EXPECT_EQ(round(scheduler)->finished, std::vector<RequestId>{2});
}

TEST(Scheduler, SteadyStepsBringTheResultsOfTheBatchInFlight) {
  SchedulerConfig settings = config(30);
  settings.async_scheduling = true;
  Scheduler scheduler(settings);
  scheduler.add(request(1, 20, 40));
  round(scheduler);
  round(scheduler);
  // 39 tokens are left of request 1 when request 2 comes; one round admits it.
  ASSERT_EQ(scheduler.steady_steps(), 38);
  scheduler.add(request(2, 20, 30));
  round(scheduler);
  // The results of its prompt come with the first round of 29.
  ASSERT_EQ(scheduler.steady_steps(), 29);
  EXPECT_FALSE(scheduler.steady_shape().ends_requests);
  SteadyJump jump = scheduler.advance_steady(29);
  EXPECT_EQ(jump.decode_requests, 2);
  EXPECT_EQ(std::vector(jump.first_token.begin(), jump.first_token.end()),
            std::vector<RequestId>{2});
  EXPECT_TRUE(jump.finished.empty());
  EXPECT_EQ(scheduler.running(), 2);
  // An end may let in who waits.
  scheduler.add(request(3, 20, 2));
  EXPECT_EQ(scheduler.steady_steps(), 0);
  scheduler.abort(3);
  // Its last token with the next, in which request 1 runs alone; 49 tokens were in 4 blocks.
  EXPECT_TRUE(scheduler.steady_shape().ends_requests);
  jump = scheduler.advance_steady(2);
  EXPECT_EQ(jump.decode_requests, 1);
  EXPECT_EQ(std::vector(jump.finished.begin(), jump.finished.end()), std::vector<RequestId>{2});
  EXPECT_EQ(jump.second.free, jump.first.free + Blocks{4});
  EXPECT_EQ(scheduler.running(), 1);
}

TEST(Scheduler, SteadyStepsEndWhereBlocksDo) {
  // 30 + 30 tokens in 4 of 5 blocks. Both cross into a third block in the same step: there is one.
  Scheduler scheduler(config(5));
  scheduler.add(request(1, 30, 100));
  scheduler.add(request(2, 30, 100));
  round(scheduler);
  ASSERT_EQ(scheduler.steady_steps(), 2);  // positions 30 and 31
  const SteadyJump& jump = scheduler.advance_steady(2);
  EXPECT_EQ(jump.first_context, Tokens{62});
  EXPECT_EQ(jump.first.free, Blocks{1});
  EXPECT_EQ(jump.last.free, Blocks{1});
  EXPECT_EQ(scheduler.steady_steps(), 0);
  EXPECT_EQ(scheduler.schedule().preempted, std::vector<RequestId>{2});
}

TEST(Scheduler, AQueueThatCannotMoveDoesNotEndSteadiness) {
  // The head needs 20 blocks of 30 while 2 run with 12 each: nothing changes until one ends.
  Scheduler scheduler(config(30));
  scheduler.add(request(1, 180, 60));
  scheduler.add(request(2, 180, 60));
  while (scheduler.steady_steps() == 0) {
    round(scheduler);
  }
  scheduler.add(request(3, 320, 1));
  EXPECT_EQ(scheduler.steady_steps(), 0);  // a new head has to be looked at
  round(scheduler);
  EXPECT_EQ(scheduler.waiting(), 1);
  EXPECT_GT(scheduler.steady_steps(), 20);
  scheduler.abort(1);
  EXPECT_EQ(scheduler.steady_steps(), 0);
}

TEST(Scheduler, MemoryFollowsLiveRequestsAndIdsMayReturn) {
  Scheduler scheduler(config(20));
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(scheduler.add(request(5, 40, 3)), Added::kQueued);
    rounds_until_idle(scheduler, 10);
    ASSERT_TRUE(scheduler.idle());
  }
  EXPECT_EQ(scheduler.blocks().free, Blocks{20});
}

TEST(SchedulerConfig, AllProblemsAtOnce) {
  SchedulerConfig settings = config(10);
  settings.max_num_seqs = 0;
  settings.num_gpu_blocks = Blocks{std::int64_t{1} << 40};
  settings.watermark = 2;
  settings.groups.front().block_size = Tokens{0};
  try {
    const Scheduler scheduler(settings);
    FAIL() << "must be refused";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 4U) << error.what();
  }
}

TEST(SchedulerRules, FollowTheVersion) {
  const SchedulerRules old = rules_for(Version{{0, 19, 0}});
  const SchedulerRules now = rules_for(Version{{0, 33, 0}});
  EXPECT_FALSE(old.unhashed_freed_first);
  EXPECT_TRUE(now.unhashed_freed_first);
  EXPECT_TRUE(old.full_sequence_check);
  EXPECT_FALSE(rules_for(Version{{0, 14, 0}}).full_sequence_check);
  // With caching off 0.27 alone appends.
  EXPECT_TRUE(rules_for(Version{{0, 26, 0}}).uncached_pool_freed_first);
  EXPECT_FALSE(rules_for(Version{{0, 27, 0}}).uncached_pool_freed_first);
  EXPECT_TRUE(rules_for(Version{{0, 28, 0}}).uncached_pool_freed_first);
}

}  // namespace
}  // namespace oomcast::vllm
