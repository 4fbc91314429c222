// Small clusters of SGLang servers, with instants and figures that can be told on paper.
#include "sim/cluster/cluster.hpp"

#include <gtest/gtest.h>

#include "sim/cluster/cluster_json.hpp"
#include "sim/cluster/pairing.hpp"
#include "tests/cluster_cases.hpp"

namespace oomcast::cluster {
namespace {

// Every step takes a millisecond, whatever it holds.
class MillisecondSteps final : public StepTimeModel {
 public:
  [[nodiscard]] StepTime time_of(const StepShape& /*shape*/) const override {
    StepTime time;
    time.fixed = FineSpan{Nanos{1'000'000}};
    return time;
  }
};

constexpr const char* kPrefill =
    "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct "
    "--disaggregation-mode prefill --disable-cuda-graph --disable-overlap-schedule "
    "--max-total-tokens 10000";
constexpr const char* kDecode =
    "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct "
    "--disaggregation-mode decode --disable-cuda-graph --disable-overlap-schedule "
    "--max-total-tokens 10000";

AnyDeployment deployment(const std::string& line) { return deployment_of(line, "0.5.23"); }

class ClusterTest : public testing::Test {
 protected:
  ClusterTest()
      : setup(pair_of({start(deployment(kPrefill)), 1, &steps_},
                      {start(deployment(kDecode)), 1, &steps_})) {
    // 131,072 bytes a token: at 1.31072 GB/s a token takes 100 us.
    setup.fabric.link.bytes_per_second = 1.31072e9;
    setup.fabric.link.latency = Nanos{10'000};
    setup.fabric.link.setup = Nanos{500'000};
    setup.fabric.nics_per_node = 1;
    setup.wire_token = wire_token_bytes(deployment(kDecode));
  }

  ClusterRun run(const std::vector<workloads::TraceRequest>& requests) {
    return serve_cluster(setup, requests, false);
  }

  MillisecondSteps steps_;
  ClusterSetup setup;
};

workloads::TraceRequest request(std::int64_t arrival_ms, std::int64_t input, std::int64_t output) {
  workloads::TraceRequest out;
  out.arrival = SimTime{Nanos{arrival_ms * 1'000'000}};
  out.input = Tokens{input};
  out.output = Tokens{output};
  return out;
}

Nanos since(const RequestRow& row, SimTime at) { return at - row.arrival; }

TEST_F(ClusterTest, KvOfATokenIsWhatTheRanksKeep) {
  EXPECT_EQ(setup.wire_token, Bytes{2 * 32 * 8 * 128 * 2});
}

// Agreed after 10 us, room at once, told to the prefill side 10 us later; a step of 1 ms; set-up of
// 0.5 ms; 100 tokens on the wire in 10 ms. The first token comes with them; nine more steps.
TEST_F(ClusterTest, OneRequestOnPaper) {
  const ClusterRun out = run({request(5, 100, 10)});
  ASSERT_EQ(out.rows.size(), 1U);
  const RequestRow& row = out.rows.front();
  EXPECT_EQ(row.outcome, RequestOutcome::kFinished);
  EXPECT_EQ(row.output, Tokens{10});
  EXPECT_EQ(since(row, row.first_scheduled), Nanos{20'000});
  EXPECT_EQ(since(row, row.first_token), Nanos{20'000 + 1'000'000 + 500'000 + 10'000'000});
  EXPECT_EQ(row.finish - row.first_token, Nanos{9'000'000});
  EXPECT_EQ(out.record.cluster.at("transfers").at("bytes"), 100 * 131'072);
}

// The one token that was asked for comes with the KV.
TEST_F(ClusterTest, OneTokenIsTheHandedOne) {
  const ClusterRun out = run({request(0, 100, 1)});
  const RequestRow& row = out.rows.at(0);
  EXPECT_EQ(row.outcome, RequestOutcome::kFinished);
  EXPECT_EQ(row.output, Tokens{1});
  EXPECT_EQ(since(row, row.first_token), Nanos{11'520'000});
  EXPECT_EQ(row.finish, row.first_token);
}

// Both sides hold the prompt while it is under way, and nothing once the request is over.
TEST_F(ClusterTest, BothSidesHoldWhatIsUnderWay) {
  const ClusterRun out = run({request(0, 100, 10)});
  ASSERT_EQ(out.record.ranks.size(), 2U);
  for (const RankRecord& rank : out.record.ranks) {
    Bytes most;
    for (const TimelineRow& row : rank.timeline) {
      ASSERT_TRUE(row.transfer);
      most = std::max(most, row.transfer->kv_held);
    }
    EXPECT_EQ(most, Bytes{100 * 131'072}) << rank.role;
    EXPECT_EQ(rank.timeline.back().transfer->kv_held, Bytes{0}) << rank.role;
    EXPECT_EQ(rank.timeline.back().kv_used, Bytes{0}) << rank.role;
  }
}

// Prompts in chunks leave chunk by chunk: the second and third are computed meanwhile.
TEST_F(ClusterTest, ChunksLeaveAsTheyAreDone) {
  setup.prefill = {start(deployment(std::string(kPrefill) + " --chunked-prefill-size 100")), 1,
                   setup.prefill.step_times};
  const ClusterRun out = run({request(0, 300, 2)});
  const RequestRow& row = out.rows.at(0);
  // After the first chunk the wire is the bottleneck: 30 ms for all three.
  EXPECT_EQ(since(row, row.first_token), Nanos{20'000 + 1'000'000 + 500'000 + 30'000'000});
}

// Two at once share the wire: each takes as long as both.
TEST_F(ClusterTest, TransfersShareTheWire) {
  const ClusterRun out = run({request(0, 100, 2), request(0, 100, 2)});
  for (const RequestRow& row : out.rows) {
    EXPECT_EQ(since(row, row.first_token), Nanos{20'000 + 1'000'000 + 500'000 + 20'000'000});
  }
}

// The decode pool is full: the next request has no room, its prompt is not even begun.
TEST_F(ClusterTest, AFullDecodePoolHoldsPrefillBack) {
  setup.decode = {start(deployment(std::string(kDecode) + " --max-total-tokens 1000")), 1,
                  setup.decode.step_times};
  const ClusterRun out = run({request(0, 300, 50), request(0, 300, 50)});
  ASSERT_EQ(out.rows.size(), 2U);
  // 1,000 slots have room for 300 and the reserve of 512, not for twice that.
  EXPECT_GE(out.rows[1].first_scheduled, out.rows[0].finish);
  EXPECT_EQ(out.rows[1].outcome, RequestOutcome::kFinished);
}

TEST_F(ClusterTest, ARequestThatNeverFitsIsAStall) {
  setup.decode = {start(deployment(std::string(kDecode) + " --max-total-tokens 700")), 1,
                  setup.decode.step_times};
  const ClusterRun out = run({request(0, 300, 50)});
  EXPECT_EQ(out.record.outcome.kind, OutcomeKind::kKvTooSmall);
  EXPECT_EQ(out.rows.at(0).outcome, RequestOutcome::kNotAdmitted);
}

TEST_F(ClusterTest, APromptTooLongIsRefused) {
  const ClusterRun out = run({request(0, 20'000, 5), request(0, 100, 5)});
  EXPECT_EQ(out.rows.at(0).outcome, RequestOutcome::kRejectedTooLong);
  EXPECT_EQ(out.rows.at(1).outcome, RequestOutcome::kFinished);
}

Fault fault(const std::string& text, const ClusterSetup& setup) {
  Problems problems;
  auto out = parse_fault(text,
                         {static_cast<std::size_t>(setup.prefill.servers),
                          static_cast<std::size_t>(setup.decode.servers)},
                         problems);
  problems.raise_if_any();
  return *out;
}

// Killed while its KV is under way: the other prefill server computes the prompt again.
TEST_F(ClusterTest, APrefillServerDiesMidTransfer) {
  setup.prefill.servers = 2;
  setup.faults = {fault("kill prefill 0 at 5ms", setup)};
  const ClusterRun out = run({request(0, 100, 10)});
  const RequestRow& row = out.rows.at(0);
  EXPECT_EQ(row.outcome, RequestOutcome::kFinished);
  EXPECT_EQ(row.output, Tokens{10});
  EXPECT_EQ(since(row, row.first_token), Nanos{5'000'000 + 11'520'000});
  EXPECT_EQ(out.record.cluster.at("transfers").at("lost"), 1);
  EXPECT_EQ(out.record.cluster.at("transfers").at("done"), 1);
}

// Nobody is left to compute prompts; who is decoding goes on.
TEST_F(ClusterTest, TheLastPrefillServerDies) {
  setup.faults = {fault("kill prefill 0 at 15ms", setup)};
  const ClusterRun out = run({request(0, 100, 40), request(20, 100, 10)});
  EXPECT_EQ(out.rows.at(0).outcome, RequestOutcome::kFinished);
  EXPECT_EQ(out.rows.at(1).outcome, RequestOutcome::kFailed);
}

// Its client has seen tokens, so nobody sends it anew.
TEST_F(ClusterTest, ADecodeServerDies) {
  setup.decode.servers = 2;
  setup.faults = {fault("kill decode 0 at 15ms", setup)};
  const ClusterRun out = run({request(0, 100, 40), request(16, 100, 10)});
  EXPECT_EQ(out.rows.at(0).outcome, RequestOutcome::kFailed);
  EXPECT_EQ(out.rows.at(1).outcome, RequestOutcome::kFinished);
}

// 10 ms on the wire take 55 when a tenth of the rate is left after 5 of them, but 5 more.
TEST_F(ClusterTest, ASlowNic) {
  setup.faults = {fault("slow decode 0 to 10% at 6.52ms", setup)};
  const ClusterRun out = run({request(0, 100, 2)});
  const RequestRow& row = out.rows.at(0);
  EXPECT_EQ(since(row, row.first_token), Nanos{1'520'000 + 5'000'000 + 50'000'000});
}

// The short one ends; the other goes on.
TEST_F(ClusterTest, OneOfTwoSlowdownsEnds) {
  setup.faults = {fault("slow decode 0 to 10% at 0s", setup),
                  fault("slow decode 0 to 50% at 0s for 1ms", setup)};
  const ClusterRun out = run({request(0, 100, 2)});
  const RequestRow& row = out.rows.at(0);
  EXPECT_EQ(since(row, row.first_token), Nanos{1'520'000 + 100'000'000});
}

TEST_F(ClusterTest, WhatIsDroppedIsComputedAgain) {
  setup.faults = {fault("drop decode 0 at 5ms", setup)};
  const ClusterRun out = run({request(0, 100, 10)});
  const RequestRow& row = out.rows.at(0);
  EXPECT_EQ(row.outcome, RequestOutcome::kFinished);
  EXPECT_GT(since(row, row.first_token), Nanos{5'000'000 + 10'000'000});
}

// --- vLLM behind NIXL: the decode side pulls

std::string nixl(const char* role, const std::string& more = "") {
  return "vllm serve meta-llama/Llama-3.1-8B-Instruct --enforce-eager --no-async-scheduling "
         "--max-model-len 8192 --kv-transfer-config '{\"kv_connector\":\"NixlConnector\","
         "\"kv_role\":\"" +
         std::string(role) + "\"" + more + "}'";
}

class NixlTest : public ClusterTest {
 protected:
  NixlTest() {
    setup.prefill = pool("kv_producer");
    setup.decode = pool("kv_consumer");
    setup.wire_token = wire_token_bytes(deployment_of(nixl("kv_consumer"), "0.33.0"));
  }
  Pool pool(const char* role, const std::string& more = "") {
    return {start(deployment_of(nixl(role, more), "0.33.0")), 1, &steps_};
  }
};

// A step of 1 ms; the decode side takes its blocks in a step without work at once, set-up of 0.5
// ms, 100 tokens in 10 ms; the last prompt token is computed there in a step, which makes the first
// one.
TEST_F(NixlTest, OneRequestOnPaper) {
  const ClusterRun out = run({request(5, 100, 10)});
  const RequestRow& row = out.rows.at(0);
  EXPECT_EQ(row.outcome, RequestOutcome::kFinished);
  EXPECT_EQ(row.output, Tokens{10});
  EXPECT_EQ(since(row, row.first_scheduled), Nanos{0});
  EXPECT_EQ(since(row, row.first_token), Nanos{1'000'000 + 500'000 + 10'000'000 + 1'000'000});
  EXPECT_EQ(row.finish - row.first_token, Nanos{9'000'000});
  for (const RankRecord& rank : out.record.ranks) {
    EXPECT_EQ(rank.timeline.back().transfer->kv_held, Bytes{0}) << rank.role;
    EXPECT_EQ(rank.timeline.back().kv_used, Bytes{0}) << rank.role;
  }
}

// Whole blocks of a prompt that the decode side has already are not pulled: of 100 tokens, 6
// blocks.
TEST_F(NixlTest, WhatTheDecodeSideHasIsNotPulled) {
  workloads::TraceRequest first = request(0, 100, 10);
  first.content = {{7, Tokens{100}}};
  workloads::TraceRequest second = request(100, 100, 10);
  second.content = first.content;
  const ClusterRun out = run({first, second});
  EXPECT_EQ(out.record.cluster.at("transfers").at("bytes"), (100 + 4) * 131'072);
}

TEST_F(NixlTest, AFailedReadEndsTheRequestAndTheRouterSendsItAnew) {
  setup.faults = {fault("drop decode 0 at 5ms", setup)};
  const ClusterRun out = run({request(0, 100, 10)});
  EXPECT_EQ(out.rows.at(0).outcome, RequestOutcome::kFinished);
  EXPECT_EQ(out.record.cluster.at("transfers").at("requests_sent_anew"), 1);
}

// Of three prompts a step of 2,048 tokens takes one and a half. The next step is scheduled behind
// it when the server dies, and never begins.
TEST_F(NixlTest, AStepScheduledAheadDiesWithItsServer) {
  std::string line = nixl("kv_producer");
  line.replace(line.find("--no-async"), 10, "--async");
  setup.prefill.plan = start(deployment_of(line + " --max-num-batched-tokens 2048", "0.33.0"));
  setup.faults = {fault("kill prefill 0 at 0.5ms", setup)};
  const ClusterRun out = run({request(0, 1500, 10), request(0, 1500, 10), request(0, 500, 10)});
  EXPECT_EQ(out.rows.at(1).first_scheduled, SimTime{});
  EXPECT_EQ(out.rows.at(2).outcome, RequestOutcome::kFailed);
  EXPECT_EQ(out.rows.at(2).first_scheduled, RequestRow::kNever);
}

// With the policy `recompute` the decode side computes the prompt in a step of its own.
TEST_F(NixlTest, AFailedReadIsComputedAgain) {
  setup.decode = pool("kv_consumer", ",\"kv_load_failure_policy\":\"recompute\"");
  setup.faults = {fault("drop decode 0 at 5ms", setup)};
  const ClusterRun out = run({request(0, 100, 10)});
  const RequestRow& row = out.rows.at(0);
  EXPECT_EQ(row.outcome, RequestOutcome::kFinished);
  EXPECT_EQ(since(row, row.first_token), Nanos{5'000'000 + 1'000'000});
  EXPECT_EQ(out.record.cluster.at("transfers").at("requests_sent_anew"), 0);
}

// Nobody fetches the blocks of a decode server that died: they stay for the lease.
TEST_F(NixlTest, HeldBlocksStayForTheLease) {
  setup.decode.servers = 2;
  setup.retries = 0;
  setup.faults = {fault("kill decode 0 at 5ms", setup)};
  const ClusterRun out = run({request(0, 100, 10)});
  EXPECT_EQ(out.rows.at(0).outcome, RequestOutcome::kFailed);
  const RankRecord& prefill = out.record.ranks.front();
  const TimelineRow& last = prefill.timeline.back();
  EXPECT_EQ(last.kv_used, Bytes{0});
  EXPECT_EQ(last.at, SimTime{Nanos{30'005'000'000}});
  for (const TimelineRow& row : prefill.timeline) {
    if (row.at > SimTime{Nanos{5'000'000}} && row.at < last.at) {
      EXPECT_EQ(row.transfer->kv_held, Bytes{7 * 16 * 131'072});
    }
  }
}

// --- what cannot work together

std::string refusal(const std::string& prefill, const std::string& decode,
                    const std::string& link = "ib-ndr") {
  Problems problems;
  check_pair(deployment(prefill), deployment(decode), models::find_link(link), 8, problems);
  std::string out;
  for (const Problem& problem : problems.found()) {
    out += to_string(problem) + "\n";
  }
  return out;
}

TEST(Pairing, RefusesWhatTheEngineRefuses) {
  const std::string prefill = kPrefill;
  const std::string decode = kDecode;
  EXPECT_EQ(refusal(prefill, decode), "");
  EXPECT_NE(refusal(prefill, prefill).find("--disaggregation-mode decode"), std::string::npos);
  EXPECT_NE(refusal(prefill, decode + " --page-size 16").find("Page size mismatch"),
            std::string::npos);
  EXPECT_NE(refusal(prefill, decode + " --kv-cache-dtype fp8_e4m3").find("kv-cache-dtype"),
            std::string::npos);
  EXPECT_NE(refusal(prefill, decode + " --disaggregation-transfer-backend nixl").find("mooncake"),
            std::string::npos);
  const std::string fake = " --disaggregation-transfer-backend fake";
  EXPECT_NE(refusal(prefill + fake, decode + fake).find("moves no KV"), std::string::npos);
  EXPECT_EQ(refusal(prefill + " --tp 2", decode + " --tp 4"), "");
}

TEST(Pairing, RefusesAnotherModel) {
  std::string decode = kDecode;
  decode.replace(decode.find("meta-llama/Llama-3.1-8B-Instruct"), 32, "Qwen/Qwen3-8B");
  const std::string text = refusal(kPrefill, decode);
  EXPECT_NE(text.find("Qwen/Qwen3-8B"), std::string::npos);
  EXPECT_NE(text.find("meta-llama/Llama-3.1-8B-Instruct"), std::string::npos);
}

TEST(Pairing, ExpertsOverNodesNeedRdma) {
  const std::string moe =
      "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --ep 16 "
      "--disaggregation-mode ";
  EXPECT_EQ(refusal(moe + "prefill", moe + "decode"), "");
  EXPECT_NE(refusal(moe + "prefill", moe + "decode", "tcp-100").find("RDMA"), std::string::npos);
}

TEST(Pairing, NixlNeedsBothRoles) {
  const auto text = [](const std::string& prefill, const std::string& decode) {
    Problems problems;
    check_pair(deployment_of(prefill, "0.33.0"), deployment_of(decode, "0.33.0"),
               models::find_link("ib-ndr"), 8, problems);
    return problems.empty() ? "" : to_string(problems.found().front());
  };
  EXPECT_EQ(text(nixl("kv_producer"), nixl("kv_consumer")), "");
  EXPECT_EQ(text(nixl("kv_both"), nixl("kv_both")), "");
  EXPECT_NE(text(nixl("kv_consumer"), nixl("kv_consumer")).find("kv_producer"), std::string::npos);
  EXPECT_NE(text(nixl("kv_producer") + " --block-size 32", nixl("kv_consumer")).find("multiple"),
            std::string::npos);
}

}  // namespace
}  // namespace oomcast::cluster
