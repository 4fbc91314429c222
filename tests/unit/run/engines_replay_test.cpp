// Replays of SGLang and TensorRT-LLM: arithmetic on paper, the engines' own reactions, refusals.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/run/plan.hpp"
#include "sim/run/replay.hpp"
#include "sim/run/serving_engine.hpp"
#include "tests/given_requests.hpp"

namespace oomcast {
namespace {

using workloads::TraceRequest;

const std::string kSglang =
    "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct ";
const std::string kTrtllm = "trtllm-serve meta-llama/Llama-3.1-8B-Instruct ";

TraceRequest request(std::int64_t second, std::int64_t input, std::int64_t output) {
  TraceRequest out;
  out.arrival = SimTime{kSecond * second};
  out.input = Tokens{input};
  out.output = Tokens{output};
  return out;
}

AnyDeployment deployment(const std::string& line, const std::string& version = "") {
  DeploymentInput input;
  input.launch_line = line;
  input.gpu = "H100-80GB";
  input.engine_version = version;
  return resolve_input(input);
}

using Served = KeptRun;

Served run(const std::string& line, const std::vector<TraceRequest>& requests,
           const std::string& version = "") {
  GivenRequests stream(requests);
  return replay_kept(start(deployment(line, version)), stream);
}

// The two turns of a conversation: 64 tokens in and 64 out, then those 128 and 40 more.
std::vector<TraceRequest> two_turns() {
  TraceRequest first = request(0, 64, 64);
  first.content = {{77, Tokens{64}}};
  first.output_continues_content = true;
  TraceRequest second = request(60, 168, 8);
  second.content = {{77, Tokens{168}}};
  return {first, second};
}

TEST(SglangReplay, OneRequestOnPaper) {
  const Served one = run(kSglang, {request(0, 100, 12)}, "0.5.23");
  ASSERT_EQ(one.rows.size(), 1U);
  EXPECT_EQ(one.rows[0].outcome, RequestOutcome::kFinished);
  EXPECT_EQ(one.rows[0].output, Tokens{12});
  // A prompt and eleven decodes; the last token is never written.
  EXPECT_EQ(one.record.totals.steps, 12);
  EXPECT_EQ(one.record.totals.kv_peak, kKiB * 128 * 111);
}

// Without a prefix cache a request holds one state slot from its first step to its last, whatever
// its length, beside its tokens.
TEST(SglangReplay, RecurrentLayersKeepAStateARequest) {
  const std::string line = "python -m sglang.launch_server --model-path Qwen/Qwen3.5-4B ";
  const auto peak = [&](std::int64_t prompt) {
    return run(line + "--disable-radix-cache", {request(0, prompt, 2), request(0, prompt, 2)},
               "0.5.23")
        .record.totals.kv_peak;
  };
  // Two requests of as many tokens more: 8 layers of 4 heads of 256, keys and values, 2 bytes.
  const Bytes more = peak(300) - peak(200);
  EXPECT_EQ(more, Bytes{200} * 8 * 2 * 4 * 256 * 2);
  const Plan plan = start(deployment(line + "--disable-radix-cache", "0.5.23"));
  const Bytes state = plan.as<Plan::Sglang>()->startup.stages.front().sizes.state;
  EXPECT_EQ(peak(200), state * 2 + Bytes{2 * 201} * 8 * 2 * 4 * 256 * 2);
}

// A first turn of 600 tokens in and 200 out; 60 seconds later those and 200 more; then another
// conversation that begins with the same 600.
std::vector<TraceRequest> turns_and_a_stranger() {
  TraceRequest first = request(0, 600, 200);
  first.content = {{77, Tokens{600}}};
  first.output_continues_content = true;
  TraceRequest second = request(60, 1000, 8);
  second.content = {{77, Tokens{1000}}};
  TraceRequest third = request(120, 700, 8);
  third.content = {{77, Tokens{600}}, {78, Tokens{100}}};
  return {first, second, third};
}

TEST(SglangReplay, PrefixesEndWhereTheTreeHasAState) {
  const std::string line =
      "python -m sglang.launch_server --model-path Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4 ";
  // A prefill keeps the state at its last whole chunk of 64, decodes keep those at multiples of
  // 256: 576, and 768 of the 799 tokens that are written.
  const Served tracked = run(line, turns_and_a_stranger(), "0.5.23");
  EXPECT_EQ(tracked.rows.at(0).cached, Tokens{0});
  EXPECT_EQ(tracked.rows.at(1).cached, Tokens{768});
  EXPECT_EQ(tracked.rows.at(2).cached, Tokens{576});
  // States as they are when a prompt or a sequence ends.
  const Served plain = run(line + "--mamba-scheduler-strategy no_buffer --disable-overlap-schedule",
                           turns_and_a_stranger(), "0.5.23");
  EXPECT_EQ(plain.rows.at(1).cached, Tokens{799});
  EXPECT_EQ(plain.rows.at(2).cached, Tokens{600});
  // A request's own state and two that are tracked.
  const Plan plan = start(deployment(line, "0.5.23"));
  const Bytes state = plan.as<Plan::Sglang>()->startup.stages.front().sizes.state;
  const Served alone = run(line, {request(0, 100, 2)}, "0.5.23");
  const Served longer = run(line, {request(0, 200, 2)}, "0.5.23");
  const Bytes hundred = longer.record.totals.kv_peak - alone.record.totals.kv_peak;
  const Bytes token{hundred.count() / 100};
  EXPECT_EQ(alone.record.totals.kv_peak, state * 3 + token * 101);
}

TEST(SglangReplay, TreesOverStatesAreRefusedWhereTheyAreNotModelled) {
  const auto refusals = [](const std::string& model, const std::string& rest,
                           const std::string& version) {
    Problems problems;
    check_replay(
        deployment("python -m sglang.launch_server --model-path " + model + " " + rest, version),
        Detail::kClasses, problems);
    return problems.found().size();
  };
  const std::string qwen = "Qwen/Qwen3.5-4B";
  EXPECT_EQ(refusals(qwen, "", "0.5.23"), 0U);
  EXPECT_EQ(refusals(qwen, "", "0.5.22"), 0U);
  EXPECT_EQ(refusals(qwen, "", "0.5.21"), 1U);
  EXPECT_EQ(refusals(qwen, "--mamba-radix-cache-strategy extra_buffer_lazy", "0.5.23"), 1U);
  EXPECT_EQ(refusals(qwen, "--mamba-radix-cache-strategy no_buffer --page-size 16", "0.5.23"), 1U);
}

TEST(SglangReplay, ADecodeInAGraphAddsTheSamplersProbabilities) {
  const Served one = run(kSglang, {request(0, 100, 12)}, "0.5.23");
  const TimelineRow& last = one.record.ranks.at(0).timeline.back();
  EXPECT_EQ(last.device[index_of(Leaf::kRuntimeLogits)], Bytes{128256 * 4});
  EXPECT_EQ(last.device[index_of(Leaf::kRuntimeActivations)], Bytes{0});
  // 64 MiB of cuBLAS from the capture and 32 of the stream that serves.
  EXPECT_EQ(last.device[index_of(Leaf::kWorkspaceGemm)], kMiB * 96);
}

TEST(SglangReplay, OutputsAreHitFrom059On) {
  EXPECT_EQ(run(kSglang, two_turns(), "0.5.23").rows.at(1).cached, Tokens{127});
  EXPECT_EQ(run(kSglang, two_turns(), "0.5.8").rows.at(1).cached, Tokens{64});
  EXPECT_EQ(run(kSglang + "--disable-radix-cache", two_turns()).rows.at(1).cached, Tokens{0});
}

TEST(SglangReplay, LongPromptsAreAbortedOrCut) {
  // At most 512 - 1 - 5 tokens, one less than that is served.
  const std::string line = kSglang + "--context-length 512 ";
  const Served aborted = run(line, {request(0, 505, 4), request(1, 506, 4)}, "0.5.23");
  EXPECT_EQ(aborted.rows.at(0).outcome, RequestOutcome::kFinished);
  EXPECT_EQ(aborted.rows.at(1).outcome, RequestOutcome::kRejectedTooLong);
  const Served cut = run(line + "--allow-auto-truncate", {request(0, 2000, 4)}, "0.5.23");
  EXPECT_EQ(cut.rows.at(0).outcome, RequestOutcome::kFinished);
}

TEST(SglangReplay, AFullQueueRejects) {
  std::vector<TraceRequest> many(8, request(0, 100, 50));
  const Served served = run(kSglang + "--max-running-requests 1 --max-queued-requests 2", many);
  EXPECT_GT(served.record.totals.finished, 0);
  EXPECT_TRUE(std::any_of(served.rows.begin(), served.rows.end(), [](const RequestRow& row) {
    return row.outcome == RequestOutcome::kRejectedQueueFull;
  }));
}

TEST(SglangReplay, SmallPoolsRetract) {
  const Served tight = run(kSglang + "--max-total-tokens 1000 --schedule-conservativeness 0.1",
                           std::vector<TraceRequest>(8, request(0, 50, 300)), "0.5.23");
  EXPECT_GT(tight.record.totals.preemptions, 0);
  EXPECT_EQ(tight.record.totals.finished, 8);
  EXPECT_LE(tight.record.totals.kv_peak, kKiB * 128 * 1000);
}

TEST(TrtllmReplay, OneRequestOnPaper) {
  // 100 tokens are 4 blocks of 32, and 12 + 11 more still fit.
  const Served one = run(kTrtllm, {request(0, 100, 12)});
  EXPECT_EQ(one.record.totals.steps, 12);
  EXPECT_EQ(one.record.totals.kv_peak, kKiB * 128 * 32 * 4);
}

TEST(TrtllmReplay, ALaterTurnHitsWholeBlocks) {
  EXPECT_EQ(run(kTrtllm, two_turns()).rows.at(1).cached, Tokens{96});
}

// Two replicas: requests at one instant go to one each, so that each holds its own and runs as it
// would alone.
// One client gives up while its answer comes, one while it still waits for a place; the KV of both
// is free for the third.
TEST(Replays, ClientsThatGiveUp) {
  for (const auto& [line, version] :
       {std::pair{kSglang + "--max-running-requests 1", "0.5.23"},
        std::pair{kTrtllm + "--max_batch_size 1", "1.2.0"},
        std::pair{std::string("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 1 "
                              "--max-model-len 8192"),
                  "0.19.0"}}) {
    SCOPED_TRACE(line);
    TraceRequest answered = request(0, 100, 4000);
    answered.patience = kSecond * 2;
    TraceRequest waits = request(0, 100, 4000);
    waits.patience = kSecond;
    const Served served = run(line, {answered, waits, request(100, 100, 10)}, version);
    ASSERT_EQ(served.rows.size(), 3U);
    EXPECT_EQ(served.rows[0].outcome, RequestOutcome::kAborted);
    EXPECT_GT(served.rows[0].output, Tokens{1});
    EXPECT_LT(served.rows[0].output, Tokens{4000});
    EXPECT_NEAR(served.rows[0].finish.seconds(), 2, 0.1);
    EXPECT_EQ(served.rows[1].outcome, RequestOutcome::kAborted);
    EXPECT_EQ(served.rows[1].output, Tokens{0});
    EXPECT_LT(served.rows[1].first_scheduled, SimTime{});
    EXPECT_EQ(served.rows[2].outcome, RequestOutcome::kFinished);
    const RunTotals& totals = served.record.totals;
    EXPECT_EQ(totals.aborted, 2);
    EXPECT_EQ(totals.finished, 1);
    EXPECT_EQ(served.record.ranks[0].timeline.back().running, 1);
  }
}

// What came before to warm up leaves its prefix, and neither rows nor totals.
TEST(Replays, AWarmUpFillsThePrefixCache) {
  for (const std::string& line : {kSglang, kTrtllm}) {
    SCOPED_TRACE(line);
    std::vector<TraceRequest> turns = two_turns();
    turns[0].warm_up = true;
    const Served served = run(line, turns);
    ASSERT_EQ(served.rows.size(), 1U);
    EXPECT_GE(served.rows[0].cached, Tokens{96});  // of 128, in whole blocks
    EXPECT_EQ(served.record.totals.requests, 1);
    EXPECT_LT(served.record.totals.makespan, kSecond * 10);
  }
}

TEST(Replicas, EachHasItsOwnSchedulerAndPool) {
  const std::string line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 4096 ";
  const std::vector<TraceRequest> both = {request(0, 1000, 20), request(0, 1000, 20)};
  const Served alone = run(line, {both[0]}, "0.19.0");
  const Served two = run(line + "-dp 2", both, "0.19.0");
  ASSERT_EQ(two.rows.size(), 2U);
  for (const RequestRow& row : two.rows) {
    EXPECT_EQ(row.finish, alone.rows[0].finish);
    EXPECT_EQ(row.first_token, alone.rows[0].first_token);
  }
  EXPECT_EQ(two.record.totals.kv_peak, alone.record.totals.kv_peak);
  EXPECT_EQ(two.record.totals.steps, 2 * alone.record.totals.steps);
  ASSERT_EQ(two.record.ranks.size(), 2U);
  EXPECT_EQ(two.record.ranks[1].rank, 1);
}

// Experts are shared: while one replica computes a prompt of 8,000 tokens, the other's decodes take
// as long.
TEST(Replicas, ThoseThatShareExpertsStepTogether) {
  const std::string line =
      "vllm serve Qwen/Qwen3-30B-A3B --max-model-len 16384 -dp 2 --enable-expert-parallel "
      "--no-async-scheduling --max-num-batched-tokens 8192 ";
  TraceRequest prompt = request(0, 8000, 2);
  prompt.arrival = SimTime{Nanos{100'000'000}};  // the other decodes by then
  const Served alone = run(line, {request(0, 100, 200)}, "0.19.0");
  const Served two = run(line, {request(0, 100, 200), prompt}, "0.19.0");
  const auto took = [](const RequestRow& row) {
    return (row.finish.since_start() - row.first_token.since_start()).count();
  };
  const RequestRow& longer = two.rows[1];
  const auto prefill =
      (longer.first_token.since_start() - longer.first_scheduled.since_start()).count();
  const auto step = took(alone.rows[0]) / 199;
  EXPECT_GT(prefill, 3 * step);
  EXPECT_GT(took(two.rows[0]) - took(alone.rows[0]), prefill - 2 * step);
}

// A long prompt keeps one rank busy; the two short ones behind it go to the other.
TEST(Replicas, RanksOfAttentionDataParallelismTakeThoseWithFewestTokens) {
  const std::string line =
      "trtllm-serve Qwen/Qwen3-30B-A3B --tp_size 2 --ep_size 2 --enable_attention_dp "
      "--max_batch_size 8 ";
  const Served served =
      run(line, {request(0, 4000, 4), request(0, 32, 4), request(0, 32, 4)}, "1.2.0");
  ASSERT_EQ(served.record.ranks.size(), 2U);
  const auto most = [&](std::size_t rank) {
    std::int64_t running = 0;
    for (const TimelineRow& row : served.record.ranks[rank].timeline) {
      running = std::max(running, row.running);
    }
    return running;
  };
  EXPECT_EQ(most(0), 1);
  EXPECT_EQ(most(1), 2);
}

TEST(Replays, WhatIsNotModelledIsNamedAllAtOnce) {
  const auto problems_of = [](const std::string& line, Detail detail) {
    Problems problems;
    check_replay(deployment(line), detail, problems);
    return problems.found().size();
  };
  EXPECT_EQ(problems_of(kSglang, Detail::kClasses), 0U);
  EXPECT_EQ(problems_of(kTrtllm, Detail::kClasses), 0U);
  EXPECT_EQ(problems_of(kSglang, Detail::kAllocator), 1U);
  EXPECT_EQ(problems_of(kSglang + "--speculative-algorithm NGRAM --enable-lmcache "
                                  "--schedule-policy random",
                        Detail::kClasses),
            3U);
  EXPECT_EQ(problems_of(kSglang + "--tp 4 --dp 4 --enable-dp-attention", Detail::kClasses), 0U);
  EXPECT_EQ(problems_of("vllm serve meta-llama/Llama-3.1-8B-Instruct -dp 2", Detail::kAllocator),
            1U);
  EXPECT_EQ(problems_of("vllm serve meta-llama/Llama-3.1-8B-Instruct -dp 2 --kv-offloading-size 8",
                        Detail::kClasses),
            1U);
  EXPECT_EQ(problems_of(kTrtllm + "--max_beam_width 2", Detail::kClasses), 1U);
}

}  // namespace
}  // namespace oomcast
