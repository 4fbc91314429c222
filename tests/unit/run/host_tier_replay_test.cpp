// Replays of SGLang and TensorRT-LLM servers with a host tier, on paper. 131,072 B a token over a
// link of 54 GB/s.
#include <gtest/gtest.h>

#include "sim/run/plan.hpp"
#include "sim/run/replay.hpp"
#include "sim/run/serving_engine.hpp"
#include "tests/given_requests.hpp"

namespace oomcast {
namespace {

constexpr Bytes kToken{131'072};

// A prompt of 1600 tokens, one of 2000 that drives it out of 2048 slots, and the first again.
KeptRun driven_out_and_back(const std::string& line) {
  std::vector<workloads::TraceRequest> requests(3);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    workloads::TraceRequest& request = requests[i];
    request.index = static_cast<std::int64_t>(i);
    request.arrival = SimTime{kSecond * 10 * static_cast<std::int64_t>(i)};
    request.input = Tokens{i == 1 ? 2000 : 1600};
    request.output = Tokens{1};
    request.content = {{i == 1 ? 88U : 77U, request.input}};
  }
  DeploymentInput input;
  input.launch_line = line;
  input.gpu = "H100-80GB";
  GivenRequests stream(std::move(requests));
  return replay_kept(make_plan(resolve_input(input)), stream, {});
}

KeptRun sglang_run(const std::string& flags) {
  return driven_out_and_back(
      "sglang serve --model-path meta-llama/Llama-3.1-8B-Instruct --context-length 4096 "
      "--max-total-tokens 2048 " +
      flags);
}

TEST(HostTierReplay, SglangWritesThroughAndLoadsLayerByLayer) {
  const KeptRun without = sglang_run("");
  EXPECT_FALSE(without.record.totals.host_tier);
  EXPECT_EQ(without.rows[2].cached, Tokens{0});
  for (const char* mode : {"", "--disable-overlap-schedule "}) {
    const KeptRun with = sglang_run(std::string(mode) + "--enable-hierarchical-cache");
    // All but the last token, which is computed for its logits.
    EXPECT_EQ(with.rows[2].cached, Tokens{1599});
    EXPECT_EQ(with.rows[2].first_scheduled, SimTime{kSecond * 20});
    const HostTierTotals& tier = *with.record.totals.host_tier;
    EXPECT_EQ(tier.pool, kToken * 4097);
    EXPECT_EQ(tier.hit_tokens, Tokens{1599});
    EXPECT_EQ(tier.loaded, kToken * 1599);
    EXPECT_EQ(tier.stored, kToken * 3600);
    EXPECT_EQ(tier.used_peak, kToken * 3600);
    // The load takes 3,881,187.6 ns, less than the step; its first layer of 32 comes late.
    EXPECT_EQ(tier.loads_took, Nanos{3'881'187});
    EXPECT_EQ(tier.steps_waited, Nanos{121'287});
    for (const TimelineRow& row : with.record.ranks.at(0).timeline) {
      EXPECT_EQ(row.views.pinned_host, kToken * 4097);
      EXPECT_LE(row.host_used.value(), row.views.pinned_host);
    }
    EXPECT_LT(with.rows[2].first_token - with.rows[2].arrival,
              without.rows[2].first_token - without.rows[2].arrival);
  }
}

TEST(HostTierReplay, SglangWritesBackBeforeTheStep) {
  const KeptRun with =
      sglang_run("--enable-hierarchical-cache --hicache-write-policy write_back --tp 2");
  // 1600 tokens leave before the second prompt, 2000 before the third; half of each on a link.
  EXPECT_EQ(with.rows[1].first_scheduled, (SimTime{kSecond * 10 + Nanos{1'941'807}}));
  EXPECT_EQ(with.rows[2].first_scheduled, (SimTime{kSecond * 20 + Nanos{2'427'259}}));
  EXPECT_EQ(with.rows[2].cached, Tokens{1599});
  const HostTierTotals& tier = *with.record.totals.host_tier;
  EXPECT_EQ(tier.pool, kToken * 4097);
  EXPECT_EQ(tier.stored, kToken * 3600);
  EXPECT_EQ(tier.loaded, kToken * 1599);
  EXPECT_EQ(tier.steps_waited, Nanos{1'941'807 + 2'427'259 + 60'643});
}

TEST(HostTierReplay, SglangSelectsWhatIsHitTwice) {
  const KeptRun with =
      sglang_run("--enable-hierarchical-cache --hicache-write-policy write_through_selective");
  EXPECT_EQ(with.rows[2].cached, Tokens{0});
  EXPECT_EQ(with.record.totals.host_tier->stored, Bytes{0});
}

// 64 blocks of 4 MiB. The second prompt's 63 take 14 that were never used and drive 49 of the
// first's 50 out; 48 of them come back, for 48 of the second's.
TEST(HostTierReplay, TrtllmOffloadsAndOnboardsBeforeTheStep) {
  const std::string line =
      "trtllm-serve meta-llama/Llama-3.1-8B-Instruct --max_seq_len 2048 "
      "--kv-cache-max-tokens 2048 ";
  EXPECT_EQ(driven_out_and_back(line).rows[2].cached, Tokens{32});
  const KeptRun with = driven_out_and_back(line + "--host-cache-size 1073741824");
  EXPECT_EQ(with.rows[2].cached, Tokens{49 * 32});
  const Bytes block = kToken * 32;
  const HostTierTotals& tier = *with.record.totals.host_tier;
  EXPECT_EQ(tier.pool, kGiB);
  EXPECT_EQ(tier.hit_tokens, Tokens{48 * 32});
  EXPECT_EQ(tier.loaded, block * 48);
  EXPECT_EQ(tier.stored, block * (49 + 48));
  EXPECT_EQ(tier.used_peak, block * 49);
  EXPECT_EQ(with.rows[1].first_scheduled, (SimTime{kSecond * 10 + Nanos{3'805'942}}));
  EXPECT_EQ(with.rows[2].first_scheduled, (SimTime{kSecond * 20 + Nanos{3'728'270}}));
  EXPECT_EQ(tier.steps_waited, Nanos{3'805'942 + 3'728'270});
}

TEST(HostTierReplay, WhatIsNotModelledIsRefused) {
  const auto refused = [](const std::string& line, const std::string& version) {
    DeploymentInput input;
    input.launch_line = line;
    input.gpu = "H100-80GB";
    input.engine_version = version;
    Problems problems;
    check_replay(resolve_input(input), Detail::kClasses, problems);
    return !problems.empty();
  };
  const std::string line =
      "sglang serve --model-path meta-llama/Llama-3.1-8B-Instruct --enable-hierarchical-cache ";
  EXPECT_FALSE(refused(line, "0.5.23"));
  EXPECT_TRUE(refused(line, "0.5.8"));
  EXPECT_TRUE(refused(line + "--hicache-storage-backend mooncake", "0.5.23"));
}

}  // namespace
}  // namespace oomcast
