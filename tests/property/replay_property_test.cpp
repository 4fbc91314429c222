// Random small deployments of all engines under random workloads, with clients that give up: many
// like steps at once and single steps give the same record, every row adds up, every request comes
// to one end.
#include "sim/run/replay.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "sim/core/random.hpp"
#include "sim/run/plan.hpp"
#include "tests/given_requests.hpp"
#include "tests/property/cases.hpp"

namespace oomcast {
namespace {

class Case : private RandomCase {
 public:
  explicit Case(std::uint64_t seed) : RandomCase(random_stream(seed, "replays")) {}

  std::string sglang() {
    const std::int64_t page = pick<std::int64_t>({1, 1, 1, 4, 16});
    std::string line = fmt::format(
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct "
        "--context-length {} --max-total-tokens {} --max-running-requests {} --page-size {} "
        "--chunked-prefill-size {} --schedule-conservativeness {} --schedule-policy {}",
        number(64, 3000), number(100, 5000), number(2, 40), page,
        flip(4) ? -1 : page * number(8, 400), pick<std::string>({"0.05", "0.3", "1", "1.4"}),
        pick<std::string>({"fcfs", "fcfs", "lpm", "lof", "dfs-weight"}));
    for (const auto& [flag, odds] :
         {std::pair{" --disable-cuda-graph", 2}, std::pair{" --disable-overlap-schedule", 3},
          std::pair{" --enable-mixed-chunk", 4}, std::pair{" --disable-radix-cache", 5},
          std::pair{" --allow-auto-truncate", 4}, std::pair{" --max-queued-requests 5", 8},
          std::pair{" --prefill-max-requests 2", 8}}) {
      line += flip(odds) ? flag : "";
    }
    return line;
  }

  std::string trtllm() {
    const std::int64_t block = pick<std::int64_t>({2, 8, 32, 64});
    std::string line = fmt::format(
        "trtllm-serve meta-llama/Llama-3.1-8B-Instruct --max_seq_len {} --kv-cache-max-tokens {} "
        "--max_batch_size {} --max_num_tokens {} --tokens-per-block {} "
        "--capacity-scheduler-policy {}",
        number(64, 3000), number(100, 5000), number(1, 40), number(64, 3000), block,
        pick<std::string>({"GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"}));
    for (const auto& [flag, odds] :
         {std::pair{" --enable_chunked_prefill", 2}, std::pair{" --disable-overlap-scheduler", 3},
          std::pair{" --cuda-graph-enable-padding", 2}}) {
      line += flip(odds) ? flag : "";
    }
    if (flip(2)) {
      line += fmt::format(" --host-cache-size {}", number(1, 8000) * 131072);
    }
    return line;
  }

  // A rank's share of a chunk must hold whole pages.
  std::string sglang_replicas() {
    const std::string line = sglang();
    const bool any_chunk = line.find("--page-size 1 ") != std::string::npos;
    return line + (any_chunk && flip(2) ? " --tp 2 --dp 2 --enable-dp-attention" : " --dp 3");
  }
  std::string vllm_version() { return pick<std::string>({"0.11.0", "0.19.0", "0.33.0"}); }
  std::string vllm() {
    return fmt::format(
        "vllm serve {} --max-model-len 4096 --max-num-seqs {} --max-num-batched-tokens {} "
        "--num-gpu-blocks-override {}",
        pick<std::string>(
            {"meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B --enable-expert-parallel"}),
        number(1, 16), number(64, 512), number(300, 600));
  }
  std::string vllm_replicas() { return vllm() + fmt::format(" -dp {}", 2 * number(1, 2)); }

  // A host tier, where the release has the rules.
  std::string host_tier(const std::string& line, const std::string& version) {
    if (line.find("--disable-radix-cache") != std::string::npos ||
        (version != "0.5.22" && version != "0.5.23") || flip(3)) {
      return "";
    }
    // A small pool, so that there is something on the host alone.
    return fmt::format(
        " --enable-hierarchical-cache --hicache-ratio {} --hicache-write-policy {} "
        "--max-total-tokens {}",
        pick<std::string>({"0.5", "2", "4"}),
        pick<std::string>({"write_through", "write_through_selective", "write_back"}),
        number(100, 1200));
  }

  std::string sglang_version() {
    return pick<std::string>({"0.5.8", "0.5.10", "0.5.12", "0.5.20", "0.5.22", "0.5.23", "0.5.23"});
  }

  std::vector<workloads::TraceRequest> requests() {
    std::vector<workloads::TraceRequest> out(static_cast<std::size_t>(number(1, 60)));
    const std::int64_t gap = pick<std::int64_t>({0, 3, 30, 300});
    const std::int64_t longest = pick<std::int64_t>({50, 500, 2000});
    const bool impatient = flip(3);
    SimTime now;
    for (std::size_t i = 0; i < out.size(); ++i) {
      workloads::TraceRequest& request = out[i];
      request.index = static_cast<std::int64_t>(i);
      now = now + Nanos{1000000} * number(0, gap);
      request.arrival = now;
      request.input = Tokens{number(1, longest)};
      request.output = Tokens{number(1, longest)};
      if (impatient && flip(2)) {
        request.patience = Nanos{1000000} * number(0, 4000);
      }
      if (flip(2)) {
        const Tokens shared = std::min(request.input, Tokens{number(1, 400)});
        request.content = {
            {static_cast<std::uint64_t>(number(1, 4)), shared},
            {1000 + static_cast<std::uint64_t>(number(1, 20)), request.input - shared}};
        request.output_continues_content = flip(2);
      }
    }
    return out;
  }
};

KeptRun serve_all(const Plan& plan, const std::vector<workloads::TraceRequest>& requests,
                  bool step_by_step) {
  GivenRequests stream(requests);
  ReplayOptions options;
  options.step_by_step = step_by_step;
  return replay_kept(plan, stream, options);
}

void expect_rows_conserve(const RankRecord& rank) {
  for (const TimelineRow& row : rank.timeline) {
    Bytes sum;
    for (const Bytes bytes : row.device) {
      sum += bytes;
    }
    ASSERT_EQ(sum, row.views.device_used);
    ASSERT_EQ(row.kv_used + row.kv_cached + row.kv_free, row.device[index_of(Leaf::kKvPool)]);
    ASSERT_GE(row.kv_free, Bytes{0});
    ASSERT_LE(row.views.torch_allocated, row.views.torch_reserved);
    ASSERT_LE(row.views.device_used, rank.device_total);
  }
}

void expect_requests_end(const KeptRun& served, std::size_t requests) {
  const RunTotals& totals = served.record.totals;
  ASSERT_EQ(totals.requests, static_cast<std::int64_t>(requests));
  ASSERT_EQ(totals.finished + totals.rejected + totals.aborted + totals.unfinished,
            totals.requests);
  ASSERT_EQ(served.rows.size(), requests);
  for (const RequestRow& row : served.rows) {
    if (row.outcome == RequestOutcome::kFinished) {
      ASSERT_LE(row.arrival, row.first_scheduled);
      ASSERT_LE(row.first_scheduled, row.first_token);
      ASSERT_LE(row.first_token, row.finish);
      ASSERT_LE(row.cached, row.input);
    }
  }
}

class ReplayProperty : public PropertyTest {
 protected:
  // Replays both ways and compares.
  void check(const DeploymentInput& input, Case& made) {
    const Plan plan = start(resolve_input(input));
    const std::vector<workloads::TraceRequest> requests = made.requests();
    const KeptRun fast = serve_all(plan, requests, false);
    const KeptRun slow = serve_all(plan, requests, true);
    SCOPED_TRACE(fmt::format("seed {} version {}: {}", current_seed, input.engine_version,
                             input.launch_line));
    ASSERT_EQ(fast.record.digest, slow.record.digest);
    ASSERT_EQ(fast.record.totals.steps, slow.record.totals.steps);
    ASSERT_EQ(fast.record.totals.kv_peak, slow.record.totals.kv_peak);
    ASSERT_EQ(fast.record.totals.kv_peak_at, slow.record.totals.kv_peak_at);
    ASSERT_EQ(fast.record.ranks.at(0).timeline.size(), slow.record.ranks.at(0).timeline.size());
    ASSERT_EQ(fast.record.outcome.message, slow.record.outcome.message);
    expect_rows_conserve(fast.record.ranks.at(0));
    expect_requests_end(fast, requests.size());
    if (const auto& tier = fast.record.totals.host_tier) {
      ASSERT_LE(tier->used_peak, tier->pool);
      ASSERT_LE(tier->used_peak, tier->stored);
      ASSERT_LE(tier->hit_tokens, fast.record.totals.prefix_hit_tokens);
      loads_ += tier->loads;
    }
    lost_places_ += fast.record.totals.preemptions;
    hit_ += fast.record.totals.prefix_hit_tokens.count();
    given_up_ += fast.record.totals.aborted;
  }

  std::int64_t lost_places_ = 0;
  std::int64_t hit_ = 0;
  std::int64_t given_up_ = 0;
  std::int64_t loads_ = 0;  // from a host tier
};

TEST_F(ReplayProperty, TrtllmFastForwardEqualsSingleSteps) {
  for (std::int64_t seed = 0; seed < property_cases() / 5 && !HasFatalFailure(); ++seed) {
    current_seed = seed;
    Case made(static_cast<std::uint64_t>(seed));
    DeploymentInput input;
    input.launch_line = made.trtllm();
    input.gpu = "H100-80GB";
    check(input, made);
  }
  EXPECT_GT(lost_places_, 0);
  EXPECT_GT(hit_, 0);
  EXPECT_GT(loads_, property_cases() / 100);
}

TEST_F(ReplayProperty, VllmFastForwardEqualsSingleSteps) {
  for (std::int64_t seed = 0; seed < property_cases() / 10 && !HasFatalFailure(); ++seed) {
    current_seed = seed;
    Case made(static_cast<std::uint64_t>(seed));
    DeploymentInput input;
    input.gpu = "H100-80GB";
    input.launch_line = made.vllm();
    input.engine_version = made.vllm_version();
    check(input, made);
  }
  EXPECT_GT(lost_places_, 0);
  EXPECT_GT(hit_, 0);
  EXPECT_GT(given_up_, property_cases() / 20);
}

// Replicas at their own pace, those of experts together.
TEST_F(ReplayProperty, ReplicasFastForwardEqualsSingleSteps) {
  for (std::int64_t seed = 0; seed < property_cases() / 10 && !HasFatalFailure(); ++seed) {
    current_seed = seed;
    Case made(static_cast<std::uint64_t>(seed));
    DeploymentInput input;
    input.gpu = "H100-80GB";
    if (seed % 3 == 0) {
      input.launch_line = made.sglang_replicas();
      input.engine_version = made.sglang_version();
    } else {
      input.launch_line = made.vllm_replicas();
      input.engine_version = made.vllm_version();
    }
    check(input, made);
  }
  EXPECT_GT(lost_places_, 0);
  EXPECT_GT(hit_, 0);
}

TEST_F(ReplayProperty, SglangFastForwardEqualsSingleSteps) {
  for (std::int64_t seed = 0; seed < property_cases() / 5 && !HasFatalFailure(); ++seed) {
    current_seed = seed;
    Case made(static_cast<std::uint64_t>(seed));
    DeploymentInput input;
    input.launch_line = made.sglang();
    input.gpu = "H100-80GB";
    input.engine_version = made.sglang_version();
    input.launch_line += made.host_tier(input.launch_line, input.engine_version);
    check(input, made);
  }
  EXPECT_GT(lost_places_, 0);
  EXPECT_GT(hit_, 0);
  EXPECT_GT(loads_, property_cases() / 100);
}

}  // namespace
}  // namespace oomcast
