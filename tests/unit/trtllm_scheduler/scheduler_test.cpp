// TensorRT-LLM's rules on paper: capacity policies, tokens of a step, block reuse.
#include "sim/engines/trtllm/scheduler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"

namespace oomcast::trtllm {
namespace {

SchedulerConfig config(std::int64_t blocks, std::int64_t tokens_per_block = 32) {
  SchedulerConfig out;
  out.pool_blocks = Blocks{blocks};
  out.tokens_per_block = Tokens{tokens_per_block};
  out.overlap = false;
  return out;
}

class Engine {
 public:
  explicit Engine(const SchedulerConfig& settings) : scheduler(settings) {}

  Added add(RequestId id, std::int64_t prompt, std::int64_t output, std::uint64_t segment = 0) {
    const std::array<ContentSegment, 1> content = {ContentSegment{segment, Tokens{prompt}}};
    RequestSpec spec;
    spec.id = id;
    spec.prompt_len = Tokens{prompt};
    spec.max_output = Tokens{output};
    if (segment != 0) {
      spec.prompt = content;
      spec.output_continues_prompt = true;
    }
    return scheduler.add(spec);
  }

  // One round.
  const StepPlan& step() {
    const StepPlan& plan = scheduler.schedule();
    if (scheduler.batches_in_flight() == scheduler.depth()) {
      for (const FinishedRequest& request : scheduler.complete().finished) {
        finished.push_back(request.id);
      }
    }
    scheduler.check_conservation();
    return plan;
  }
  void finish_all() {
    for (int round = 0; !scheduler.idle(); ++round) {
      ASSERT_LT(round, 10000);
      step();
    }
  }

  Scheduler scheduler;
  std::vector<RequestId> finished;
};

std::vector<RequestId> ids(const std::vector<Admission>& admitted) {
  std::vector<RequestId> out;
  for (const Admission& one : admitted) {
    out.push_back(one.id);
  }
  return out;
}

using Ids = std::vector<RequestId>;

TEST(GuaranteedNoEvict, ReservesEveryBlockUntilTheEnd) {
  // 64 + 64 tokens are 4 blocks of 32, 160 + 32 are 6: ten blocks hold both, nine do not.
  Engine both(config(10));
  both.add(1, 64, 64);
  both.add(2, 160, 32);
  const StepPlan& plan = both.step();
  EXPECT_EQ(ids(plan.admitted), (Ids{1, 2}));
  EXPECT_EQ(plan.blocks.used, Blocks{2 + 5});  // the contexts alone are allocated
  Engine one(config(9));
  one.add(1, 64, 64);
  one.add(2, 160, 32);
  EXPECT_EQ(ids(one.step().admitted), Ids{1});
  one.finish_all();
  EXPECT_EQ(one.finished, (Ids{1, 2}));
  EXPECT_EQ(one.scheduler.pauses(), 0);
}

TEST(GuaranteedNoEvict, TheHeadHoldsBackThoseBehindIt) {
  Engine engine(config(8));
  engine.add(1, 96, 32);   // 4 blocks
  engine.add(2, 128, 64);  // 6, where 4 are left
  engine.add(3, 32, 32);   // 2 would fit
  EXPECT_EQ(ids(engine.step().admitted), Ids{1});
  engine.finish_all();
  EXPECT_EQ(engine.finished.front(), 1U);
}

TEST(MaxUtilization, TheLastGivesWay) {
  // Blocks of 4, five of them. Two contexts of 8 take two each; both generations need a third.
  SchedulerConfig settings = config(5, 4);
  settings.capacity = CapacityPolicy::kMaxUtilization;
  Engine engine(settings);
  engine.add(1, 8, 8);
  engine.add(2, 8, 8);
  EXPECT_EQ(ids(engine.step().admitted), (Ids{1, 2}));
  const StepPlan& plan = engine.step();
  EXPECT_EQ(plan.paused, Ids{2});
  EXPECT_EQ(plan.decode_requests, 1);
  EXPECT_EQ(plan.blocks.used, Blocks{3});
  // 8 + 1 tokens need 3 blocks again: only the end of the first (15 tokens, 4 blocks) gives them.
  engine.finish_all();
  EXPECT_EQ(engine.finished, (Ids{1, 2}));
  EXPECT_EQ(engine.scheduler.pauses(), 1);
}

TEST(StaticBatch, NobodyJoinsWhileOthersRun) {
  SchedulerConfig settings = config(100);
  settings.capacity = CapacityPolicy::kStaticBatch;
  Engine engine(settings);
  engine.add(1, 10, 3);
  EXPECT_EQ(ids(engine.step().admitted), Ids{1});
  engine.add(2, 10, 3);
  EXPECT_TRUE(engine.step().admitted.empty());
  EXPECT_TRUE(engine.step().admitted.empty());
  EXPECT_EQ(engine.finished, Ids{1});
  EXPECT_EQ(ids(engine.step().admitted), Ids{2});
}

TEST(TokensOfAStep, WholeContextsStopAtTheLimit) {
  SchedulerConfig settings = config(100);
  settings.max_num_tokens = Tokens{100};
  Engine engine(settings);
  EXPECT_EQ(engine.add(9, 101, 1), Added::kPromptTooLong);
  engine.add(1, 60, 9);
  engine.add(2, 60, 9);
  EXPECT_EQ(engine.step().prefill_tokens, Tokens{60});
  const StepPlan& plan = engine.step();
  EXPECT_EQ(plan.prefill_tokens, Tokens{60});
  EXPECT_EQ(plan.tokens, Tokens{61});
}

TEST(TokensOfAStep, ChunksAreWholeBlocksButForTheLast) {
  // 100 tokens a step: the first takes 96 of its 150, 4 are no block for the second.
  SchedulerConfig settings = config(100);
  settings.max_num_tokens = Tokens{100};
  settings.chunked_prefill = true;
  Engine engine(settings);
  engine.add(1, 150, 9);
  engine.add(2, 40, 9);
  const StepPlan& first = engine.step();
  EXPECT_EQ(first.prefill_requests, 1);
  EXPECT_EQ(first.prefill_tokens, Tokens{96});
  EXPECT_EQ(first.sampling_requests, 0);
  EXPECT_EQ(first.blocks.used, Blocks{5});  // of the whole context
  const StepPlan& second = engine.step();
  EXPECT_EQ(second.prefill_tokens, Tokens{54 + 40});
  EXPECT_EQ(second.sampling_requests, 2);
}

TEST(TokensOfAStep, EqualProgressGivesABlockInTurn) {
  // 32 each, 32 more for the first; the second's last 8 exceed the 4 that are left.
  SchedulerConfig settings = config(100);
  settings.max_num_tokens = Tokens{100};
  settings.chunked_prefill = true;
  settings.chunking = ChunkingPolicy::kEqualProgress;
  Engine engine(settings);
  engine.add(1, 150, 9);
  engine.add(2, 40, 9);
  EXPECT_EQ(engine.step().prefill_tokens, Tokens{64 + 32});
}

TEST(BlockReuse, FullBlocksButNeverTheLastToken) {
  Engine engine(config(100));
  engine.add(1, 100, 1, 7);
  engine.finish_all();
  engine.add(2, 100, 1, 7);  // 99 / 32 = 3 blocks
  EXPECT_EQ(engine.step().admitted.at(0).hit, Tokens{96});
  engine.add(3, 96, 1, 7);  // 95 / 32 = 2
  EXPECT_EQ(engine.step().admitted.at(0).hit, Tokens{64});
}

TEST(BlockReuse, OutputsAreFoundByTheNextTurn) {
  // 40 + 60 tokens, of which 99 are computed: 3 blocks of 32.
  Engine engine(config(100));
  engine.add(1, 40, 60, 7);
  engine.finish_all();
  engine.add(2, 140, 1, 7);
  EXPECT_EQ(engine.step().admitted.at(0).hit, Tokens{96});
}

TEST(BlockReuse, WhoCouldReuseWhatIsComputedNowWaits) {
  Engine engine(config(100));
  engine.add(1, 100, 5, 7);
  engine.add(2, 100, 5, 7);
  EXPECT_EQ(ids(engine.step().admitted), Ids{1});
  const StepPlan& plan = engine.step();
  EXPECT_EQ(ids(plan.admitted), Ids{2});
  EXPECT_EQ(plan.admitted.at(0).hit, Tokens{96});
  EXPECT_EQ(plan.prefill_tokens, Tokens{4});
}

TEST(BlockReuse, TailsAreEvictedFirst) {
  // Four blocks; 97 tokens fill three and start the fourth. Two blocks for somebody else are the
  // started one and the third.
  Engine engine(config(4));
  engine.add(1, 97, 1, 7);
  engine.finish_all();
  EXPECT_EQ(engine.scheduler.blocks().cached, Blocks{3});
  engine.add(2, 33, 1);
  engine.finish_all();
  engine.add(3, 97, 1, 7);
  EXPECT_EQ(engine.step().admitted.at(0).hit, Tokens{64});
}

// Four blocks again. The second request drives out the third block of the first; when that comes
// back the second's full block makes room for the last one.
TEST(HostBlocks, EvictedBlocksGoToTheHostAndComeBack) {
  SchedulerConfig settings = config(4);
  settings.host_blocks = Blocks{8};
  Engine engine(settings);
  engine.add(1, 97, 1, 7);
  engine.finish_all();
  engine.add(2, 33, 1);
  const HostTraffic out = engine.step().host;
  EXPECT_EQ(out.offloaded, Blocks{1});
  EXPECT_EQ(out.onboarded, Blocks{0});
  EXPECT_EQ(out.used, Blocks{1});
  engine.finish_all();
  engine.add(3, 97, 1, 7);
  const StepPlan& plan = engine.step();
  EXPECT_EQ(plan.admitted.at(0).hit, Tokens{96});
  EXPECT_EQ(plan.prefill_tokens, Tokens{1});
  EXPECT_EQ(plan.host.onboarded, Blocks{1});
  EXPECT_EQ(plan.host.offloaded, Blocks{1});
  EXPECT_EQ(plan.host.used, Blocks{1});
}

// One block on the host: of the three that leave, tail first, it keeps the head.
TEST(HostBlocks, TheHostsLeastRecentMakesRoom) {
  SchedulerConfig settings = config(4);
  settings.host_blocks = Blocks{1};
  Engine engine(settings);
  engine.add(1, 97, 1, 7);
  engine.finish_all();
  engine.add(2, 97, 1);
  EXPECT_EQ(engine.step().host.offloaded, Blocks{3});
  engine.finish_all();
  engine.add(3, 97, 1, 7);
  const StepPlan& plan = engine.step();
  EXPECT_EQ(plan.admitted.at(0).hit, Tokens{32});
  EXPECT_EQ(plan.host.onboarded, Blocks{1});
  EXPECT_EQ(plan.host.offloaded, Blocks{3});
  EXPECT_EQ(plan.host.used, Blocks{1});
}

TEST(OverlapScheduler, ResultsComeARoundLateWithoutAWastedStep) {
  SchedulerConfig settings = config(100);
  settings.overlap = true;
  Engine engine(settings);
  engine.add(1, 10, 2);
  EXPECT_EQ(engine.step().prefill_requests, 1);
  EXPECT_EQ(engine.step().decode_requests, 1);
  EXPECT_TRUE(engine.finished.empty());
  EXPECT_EQ(engine.step().requests, 0);
  EXPECT_EQ(engine.finished, Ids{1});
}

TEST(Limits, NoSequenceIsLongerThanThePool) {
  // Four blocks of 32 hold 128 tokens.
  Engine engine(config(4));
  EXPECT_EQ(engine.add(1, 128, 1), Added::kPromptTooLong);
  EXPECT_EQ(engine.add(2, 127, 50), Added::kQueued);
  engine.finish_all();
  EXPECT_EQ(engine.finished, Ids{2});
  EXPECT_EQ(engine.add(3, 0, 1), Added::kEmptyPrompt);
  EXPECT_EQ(engine.add(4, 1, 0), Added::kNoOutput);
}

TEST(Limits, SettingsThatCannotWorkAreNamed) {
  SchedulerConfig bad = config(0);
  bad.max_batch_size = 0;
  try {
    const Scheduler scheduler(bad);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 2U);
  }
}

TEST(SteadyRounds, LeaveTheStateOfSingleRounds) {
  RandomStream random = random_stream(7, "trtllm steady");
  for (int round = 0; round < 200; ++round) {
    SchedulerConfig settings = config(uniform_int(random, 8, 60), 4);
    settings.max_batch_size = uniform_int(random, 1, 8);
    settings.max_num_tokens = Tokens{uniform_int(random, 40, 200)};
    settings.overlap = uniform_int(random, 0, 1) == 0;
    settings.chunked_prefill = uniform_int(random, 0, 1) == 0;
    settings.capacity = static_cast<CapacityPolicy>(uniform_int(random, 0, 2));
    settings.host_blocks = Blocks{std::max<std::int64_t>(uniform_int(random, -30, 40), 0)};
    Engine fast(settings);
    Engine slow(settings);
    for (RequestId id = 1; id <= 12; ++id) {
      const std::int64_t prompt = uniform_int(random, 1, 30);
      const std::int64_t output = uniform_int(random, 1, 60);
      const auto segment = static_cast<std::uint64_t>(uniform_int(random, 0, 2));
      EXPECT_EQ(fast.add(id, prompt, output, segment), slow.add(id, prompt, output, segment));
    }
    for (int steps = 0; !fast.scheduler.idle() && steps < 5000; ++steps) {
      const std::int64_t n = fast.scheduler.steady_steps();
      if (n > 0) {
        const SteadyJump jump = fast.scheduler.advance_steady(n);
        fast.scheduler.check_conservation();
        for (std::int64_t i = 0; i < n; ++i) {
          const StepPlan& plan = slow.step();
          ASSERT_EQ(plan.requests, jump.decode_requests);
          ASSERT_EQ(plan.decode_context, jump.first_context + Tokens{i * jump.decode_requests});
          ASSERT_EQ(plan.host.offloaded, Blocks{0});
        }
      } else {
        fast.step();
        slow.step();
      }
      ASSERT_EQ(fast.scheduler.state_digest(), slow.scheduler.state_digest()) << round;
      if (fast.scheduler.stalled()) {
        break;
      }
    }
    ASSERT_EQ(fast.finished, slow.finished);
  }
}

}  // namespace
}  // namespace oomcast::trtllm
