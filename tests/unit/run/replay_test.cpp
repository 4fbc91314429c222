// The serving loop as a whole: fast-forward against single steps, conservation in every row, and
// arithmetic on paper for runs small enough.
#include "sim/run/replay.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"
#include "sim/run/plan.hpp"
#include "tests/given_requests.hpp"

namespace oomcast {
namespace {

using Served = KeptRun;

Served run(const std::string& flags, const std::string& synthetic, bool step_by_step,
           std::uint64_t seed = 1) {
  DeploymentInput input;
  input.launch_line = "vllm serve meta-llama/Llama-3.1-8B-Instruct " + flags;
  input.gpu = "H100-80GB";
  input.engine_version = "0.19.0";
  Plan plan = make_plan(resolve_input(input));
  workloads::WorkloadOptions workload;
  workload.synthetic = {synthetic};
  workload.seed = seed;
  const auto stream = workloads::make_workload(workload);
  ReplayOptions options;
  options.step_by_step = step_by_step;
  return replay_kept(std::move(plan), *stream, options);
}

void expect_rows_conserve(const RunRecord& record) {
  for (const RankRecord& rank : record.ranks) {
    for (const TimelineRow& row : rank.timeline) {
      Bytes sum;
      for (const Bytes bytes : row.device) {
        sum += bytes;
      }
      ASSERT_EQ(sum, row.views.device_used);
      ASSERT_EQ(row.kv_used + row.kv_cached + row.kv_free, row.device[index_of(Leaf::kKvPool)]);
      ASSERT_LE(row.views.torch_allocated, row.views.torch_reserved);
      ASSERT_LE(row.views.device_used, rank.device_total);
    }
  }
}

TEST(Replay, OneRequestOnPaper) {
  // 100 prompt tokens fill 7 blocks of 16; 12 more output tokens still fit (112 = 7 x 16).
  const Served one = run("--max-model-len 4096",
                         "poisson:rate=1,requests=1,input=fixed(100),output=fixed(12)", false);
  ASSERT_EQ(one.rows.size(), 1U);
  EXPECT_EQ(one.rows[0].outcome, RequestOutcome::kFinished);
  EXPECT_EQ(one.record.totals.finished, 1);
  // One step for the prompt, which yields the first token, and one for each further token.
  EXPECT_EQ(one.record.totals.steps, 12);
  const Bytes block = kKiB * 128 * 16;  // 131,072 B a token
  EXPECT_EQ(one.record.totals.kv_peak, block * 7);
  EXPECT_GT(one.rows[0].first_token, one.rows[0].arrival);
  EXPECT_GT(one.rows[0].finish, one.rows[0].first_token);
}

TEST(Replay, ALaterTurnHitsTheEarlierAnswer) {
  // Turn 1: 64 tokens in, 64 out. Turn 2 sends those 128 and 40 more. All full blocks whose tokens
  // were computed are hits: the last output token never was, so 127 / 16 = 7 blocks, 112 tokens.
  workloads::TraceRequest first;
  first.input = first.output = Tokens{64};
  first.content = {{77, Tokens{64}}};
  first.output_continues_content = true;
  workloads::TraceRequest second = first;
  second.arrival = SimTime{kSecond * 60};
  second.input = Tokens{168};
  second.content = {{77, Tokens{168}}};
  DeploymentInput input;
  input.launch_line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 4096";
  input.gpu = "H100-80GB";
  GivenRequests stream({first, second});
  const Served two = replay_kept(make_plan(resolve_input(input)), stream);
  ASSERT_EQ(two.rows.size(), 2U);
  EXPECT_EQ(two.rows[0].cached, Tokens{0});
  EXPECT_EQ(two.rows[1].cached, Tokens{112});
}

TEST(Replay, FastForwardEqualsSingleSteps) {
  RandomStream stream = random_stream(2024, "replay deployments");
  for (int round = 0; round < 120; ++round) {
    const std::int64_t seqs = uniform_int(stream, 1, 40);
    const std::int64_t tokens = std::max(seqs, uniform_int(stream, 16, 400));
    const std::string flags = fmt::format(
        "--max-model-len 2048 --num-gpu-blocks-override {} --max-num-seqs {} "
        "--max-num-batched-tokens {} {} {} {}",
        uniform_int(stream, 129, 500), seqs, tokens,
        uniform_int(stream, 0, 1) == 0 ? "" : "--no-async-scheduling",
        uniform_int(stream, 0, 3) == 0 ? "--no-enable-prefix-caching" : "",
        uniform_int(stream, 0, 3) == 0 ? "--scheduling-policy priority" : "");
    const std::string synthetic =
        fmt::format("poisson:rate={},requests={},input=uniform(1,{}),output=uniform(1,{})",
                    uniform_int(stream, 1, 200), uniform_int(stream, 1, 60),
                    uniform_int(stream, 2, 700), uniform_int(stream, 2, 400));
    const auto seed = static_cast<std::uint64_t>(round);
    const Served fast = run(flags, synthetic, false, seed);
    const Served slow = run(flags, synthetic, true, seed);
    ASSERT_EQ(fast.record.digest, slow.record.digest) << flags << " | " << synthetic;
    ASSERT_EQ(fast.record.totals.kv_peak, slow.record.totals.kv_peak);
    ASSERT_EQ(fast.record.totals.kv_peak_at, slow.record.totals.kv_peak_at);
    ASSERT_EQ(fast.record.totals.steps, slow.record.totals.steps);
    ASSERT_EQ(fast.record.ranks[0].timeline.size(), slow.record.ranks[0].timeline.size());
    expect_rows_conserve(fast.record);
    const RunTotals& totals = fast.record.totals;
    ASSERT_EQ(totals.finished + totals.rejected + totals.unfinished, totals.requests);
    ASSERT_EQ(static_cast<std::int64_t>(fast.rows.size()), totals.requests);
  }
}

TEST(Replay, RequestsComeOutInOrderOfArrival) {
  const Served many =
      run("--max-model-len 4096",
          "poisson:rate=50,requests=300,input=uniform(1,900),output=uniform(1,300)", false);
  for (std::size_t i = 0; i < many.rows.size(); ++i) {
    EXPECT_EQ(many.rows[i].index, static_cast<std::int64_t>(i));
    EXPECT_LE(many.rows[i].arrival, many.rows[i].first_scheduled);
    EXPECT_LE(many.rows[i].first_scheduled, many.rows[i].first_token);
    EXPECT_LE(many.rows[i].first_token, many.rows[i].finish);
  }
}

TEST(Replay, PipelineStagesDoNotOvertake) {
  // A decode behind its own prompt waits for the prompt to leave the last stage.
  const Served two = run("--max-model-len 8192 -pp 2",
                         "poisson:rate=1,requests=1,input=fixed(4000),output=fixed(2)", false);
  EXPECT_GT(two.rows.at(0).finish, two.rows.at(0).first_token);
}

TEST(Replay, TooLongPromptsAreRejectedNotLost) {
  const Served mixed =
      run("--max-model-len 512",
          "poisson:rate=5,requests=40,input=uniform(400,600),output=fixed(20)", false);
  EXPECT_GT(mixed.record.totals.rejected, 0);
  EXPECT_GT(mixed.record.totals.finished, 0);
  for (const RequestRow& row : mixed.rows) {
    EXPECT_EQ(row.outcome, row.input < Tokens{512} ? RequestOutcome::kFinished
                                                   : RequestOutcome::kRejectedTooLong);
  }
}

TEST(Replay, AFailedStartupIsRecordedAndServesNothing) {
  const Served failed = run("--gpu-memory-utilization 0.2",
                            "poisson:rate=5,requests=40,input=fixed(100),output=fixed(20)", false);
  EXPECT_EQ(failed.record.outcome.kind, OutcomeKind::kKvTooSmall);
  EXPECT_EQ(failed.record.totals.finished, 0);
  EXPECT_EQ(failed.record.totals.unfinished, 40);
  EXPECT_FALSE(failed.record.outcome.fixes.empty());
}

TEST(Replay, EveryFixWorks) {
  const std::string base = "--gpu-memory-utilization 0.2";
  const Served failed =
      run(base, "poisson:rate=5,requests=1,input=fixed(9),output=fixed(2)", false);
  for (const Fix& fix : failed.record.outcome.fixes) {
    const Served mended = run(base + " " + fix.change,
                              "poisson:rate=5,requests=1,input=fixed(9),output=fixed(2)", false);
    EXPECT_TRUE(mended.record.outcome.fits()) << fix.change;
  }
}

}  // namespace
}  // namespace oomcast
