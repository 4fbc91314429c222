// Replays of a vLLM server with a host tier: on paper where the run is small enough, and against
// themselves step by step.
#include <gtest/gtest.h>

#include "sim/core/random.hpp"
#include "sim/run/plan.hpp"
#include "sim/run/replay.hpp"
#include "tests/given_requests.hpp"

namespace oomcast {
namespace {

// 131,072 B a token, 2 MiB a block of 16.
constexpr const char* kLlama = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 2048 ";
constexpr Bytes kBlock = kMiB * 2;

using Served = KeptRun;

Served served(const std::string& flags, std::vector<workloads::TraceRequest> requests,
              bool step_by_step = false) {
  DeploymentInput input;
  input.launch_line = kLlama + flags;
  input.gpu = "H100-80GB";
  input.engine_version = "0.33.0";
  ReplayOptions options;
  options.step_by_step = step_by_step;
  GivenRequests stream(std::move(requests));
  return replay_kept(make_plan(resolve_input(input)), stream, options);
}

workloads::TraceRequest request(Nanos arrival, std::uint64_t content, std::int64_t input,
                                std::int64_t output) {
  workloads::TraceRequest out;
  out.arrival = SimTime{arrival};
  out.input = Tokens{input};
  out.output = Tokens{output};
  out.content = {{content, Tokens{input}}};
  return out;
}

// A prompt of 100 blocks, one of 128 (the whole pool) that drives it out, and the first again.
std::vector<workloads::TraceRequest> driven_out_and_back() {
  return {request(Nanos{0}, 77, 1600, 1), request(kSecond * 10, 88, 2040, 1),
          request(kSecond * 20, 77, 1600, 1)};
}

constexpr const char* kSmallPool = "--num-gpu-blocks-override 129 ";

TEST(HostOffload, APromptDrivenOutComesBackFromTheHost) {
  for (const char* mode : {"--no-async-scheduling ", "--async-scheduling "}) {
    const Served with =
        served(std::string(kSmallPool) + mode + "--kv-offloading-size 1", driven_out_and_back());
    const Served without = served(std::string(kSmallPool) + mode, driven_out_and_back());
    ASSERT_EQ(with.rows.size(), 3U);
    EXPECT_EQ(without.rows[2].cached, Tokens{0});
    // All 100 chunks hit; the last token is computed again for its logits.
    EXPECT_EQ(with.rows[2].cached, Tokens{1599});
    // 100 blocks over PCIe 5 at 54 GB/s: 209,715,200 B take 3,883,614.8 ns.
    EXPECT_EQ(without.rows[2].first_scheduled, SimTime{kSecond * 20});
    EXPECT_EQ(with.rows[2].first_scheduled, (SimTime{kSecond * 20 + Nanos{3'883'614}})) << mode;
    ASSERT_TRUE(with.record.totals.host_tier);
    const HostTierTotals& tier = *with.record.totals.host_tier;
    EXPECT_EQ(tier.pool, kGiB);
    EXPECT_EQ(tier.hit_tokens, Tokens{1600});
    EXPECT_EQ(tier.loads, 1);
    EXPECT_EQ(tier.loaded, kBlock * 100);
    EXPECT_EQ(tier.stored, kBlock * (100 + 127));  // whole blocks of both prompts, each once
    EXPECT_EQ(tier.used_peak, kBlock * (100 + 127));
    EXPECT_EQ(tier.steps_waited, Nanos{0});
    EXPECT_FALSE(without.record.totals.host_tier);
  }
}

TEST(HostOffload, HostMemoryIsPinnedInEveryRowAndTheCardsIsTheSame) {
  const Served with =
      served(std::string(kSmallPool) + "--kv-offloading-size 1 -tp 2", driven_out_and_back());
  const Served without = served(std::string(kSmallPool) + "-tp 2", driven_out_and_back());
  const RankRecord& rank = with.record.ranks.at(0);
  for (const TimelineRow& row : rank.timeline) {
    EXPECT_EQ(row.views.pinned_host, kMiB * 512);  // half of the region
    ASSERT_TRUE(row.host_used);
    EXPECT_LE(*row.host_used, row.views.pinned_host);
  }
  EXPECT_EQ(*rank.timeline.back().host_used, Bytes{(kBlock * 227).count() / 2});
  EXPECT_EQ(rank.device_peak.bytes, without.record.ranks.at(0).device_peak.bytes);
}

TEST(HostOffload, ASmallTierForgetsTheOldestTails) {
  // 128 chunks: the second prompt's 127 leave one of the first, its head; it is loaded, and the
  // others are computed.
  const Served small = served(std::string(kSmallPool) +
                                  "--no-async-scheduling "
                                  "--kv-transfer-config '{\"kv_connector\":\"OffloadingConnector\","
                                  "\"kv_role\":\"kv_both\",\"kv_connector_extra_config\":"
                                  "{\"cpu_bytes_to_use\":268435456}}'",
                              driven_out_and_back());
  EXPECT_EQ(small.record.totals.host_tier->pool, kMiB * 256);
  EXPECT_EQ(small.rows[2].cached, Tokens{16});
}

TEST(HostOffload, ALoadWithinTheStepsBudgetHoldsTheStepUp) {
  // 99 of the blocks can be loaded before the step; the whole prompt would leave nothing to
  // compute.
  std::vector<workloads::TraceRequest> requests = driven_out_and_back();
  requests[2].input = Tokens{1601};
  requests[2].content = {{77, Tokens{1600}}, {99, Tokens{1}}};
  const Served with = served(std::string(kSmallPool) +
                                 "--kv-offloading-size 1 "
                                 "--kv-transfer-config '{\"kv_connector\":\"OffloadingConnector\","
                                 "\"kv_role\":\"kv_both\",\"kv_connector_extra_config\":"
                                 "{\"sync_load_budget_bytes\":1073741824}}'",
                             requests);
  EXPECT_EQ(with.rows[2].cached, Tokens{1600});
  EXPECT_EQ(with.record.totals.host_tier->steps_waited, Nanos{3'883'614});
}

// Prompts that begin alike in a small pool, with answers long enough for preemptions.
std::vector<workloads::TraceRequest> sessions(RandomStream& stream) {
  std::vector<workloads::TraceRequest> requests;
  Nanos arrival;
  for (std::int64_t i = uniform_int(stream, 5, 60); i > 0; --i) {
    arrival += Nanos{uniform_int(stream, 0, 400'000'000)};
    const std::int64_t shared = uniform_int(stream, 1, 1500);
    const std::int64_t own = uniform_int(stream, 0, 300);
    workloads::TraceRequest next =
        request(arrival, static_cast<std::uint64_t>(uniform_int(stream, 1, 6)), shared,
                uniform_int(stream, 1, 200));
    if (own > 0) {
      next.input += Tokens{own};
      next.content.push_back({static_cast<std::uint64_t>(1000 + i), Tokens{own}});
    }
    requests.push_back(next);
  }
  return requests;
}

TEST(HostOffload, SingleStepsGiveTheSameAndNothingIsLost) {
  RandomStream stream = random_stream(77, "host tiers");
  HostTierTotals sum;
  std::int64_t preemptions = 0;
  for (int round = 0; round < 60; ++round) {
    const std::string flags = fmt::format(
        "--num-gpu-blocks-override {} --max-num-seqs {} --kv-offloading-size {} {} "
        "--kv-transfer-config '{{\"kv_connector\":\"OffloadingConnector\",\"kv_role\":\"kv_both\","
        "\"kv_connector_extra_config\":{{\"eviction_policy\":\"{}\",\"offload_prompt_only\":{},"
        "\"block_size\":{}}}}}'",
        uniform_int(stream, 129, 300), uniform_int(stream, 1, 12),
        0.125 * static_cast<double>(uniform_int(stream, 1, 16)),
        uniform_int(stream, 0, 1) == 0 ? "" : "--no-async-scheduling",
        uniform_int(stream, 0, 1) == 0 ? "lru" : "arc", uniform_int(stream, 0, 1) == 0,
        uniform_int(stream, 1, 3) * 16);
    const std::vector<workloads::TraceRequest> requests = sessions(stream);
    const Served fast = served(flags, requests, false);
    const Served slow = served(flags, requests, true);
    ASSERT_EQ(fast.record.digest, slow.record.digest) << flags;
    const RunTotals& totals = fast.record.totals;
    ASSERT_EQ(totals.finished, static_cast<std::int64_t>(requests.size())) << flags;
    const HostTierTotals& tier = *totals.host_tier;
    ASSERT_LE(tier.used_peak, tier.pool);
    ASSERT_LE(tier.hit_tokens, totals.prefix_hit_tokens + Tokens{tier.loads});
    ASSERT_LE(tier.used_peak, tier.stored);
    for (const TimelineRow& row : fast.record.ranks.at(0).timeline) {
      ASSERT_LE(row.host_used.value(), row.views.pinned_host);
    }
    sum.loads += tier.loads;
    sum.steps_waited += tier.steps_waited;
    preemptions += totals.preemptions;
  }
  EXPECT_GT(sum.loads, 100);
  EXPECT_GT(sum.steps_waited, Nanos{0});
  EXPECT_GT(preemptions, 10);
}

}  // namespace
}  // namespace oomcast
