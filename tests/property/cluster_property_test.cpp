// Random small clusters of SGLang and vLLM servers under random workloads and faults at random
// moments: no token is lost or doubled, everything drains, jumps equal single steps, a run is the
// same twice. That each KV token is in one hand at a time is checked within the run, at each
// change.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "sim/cluster/pairing.hpp"
#include "sim/core/random.hpp"
#include "tests/cluster_cases.hpp"
#include "tests/property/cases.hpp"

namespace oomcast::cluster {
namespace {

constexpr const char* kVersion = "";  // the newest known

class Case : private RandomCase {
 public:
  explicit Case(std::uint64_t seed) : RandomCase(random_stream(seed, "clusters")) {}

  std::string vllm(const char* role, std::int64_t block) {
    std::string line = fmt::format(
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 3000 --block-size {} "
        "--num-gpu-blocks-override {} --max-num-seqs {} --max-num-batched-tokens {} "
        "--kv-transfer-config '{{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_{}\","
        "\"kv_load_failure_policy\":\"{}\"}}'",
        block, number(3200 / block, 9000 / block), number(2, 30), number(100, 4000), role,
        flip(2) ? "fail" : "recompute");
    for (const auto& [flag, odds] :
         {std::pair{" --enforce-eager", 2}, std::pair{" --no-async-scheduling", 3},
          std::pair{" --no-enable-prefix-caching", 4}}) {
      line += flip(odds) ? flag : "";
    }
    return line;
  }

  std::string sglang(const char* role, std::int64_t page) {
    std::string line = fmt::format(
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct "
        "--disaggregation-mode {} --context-length 3000 --max-total-tokens {} "
        "--max-running-requests {} --page-size {} --num-reserved-decode-tokens {}",
        role, page * number(3000 / page, 9000 / page), number(2, 30), page, number(0, 512));
    if (std::string(role) == "prefill") {
      line += fmt::format(" --chunked-prefill-size {}", flip(4) ? -1 : page * number(8, 400));
      line += flip(4) ? " --disable-radix-cache" : "";
    }
    line += flip(2) ? " --disable-cuda-graph" : "";
    return line + (flip(3) ? " --disable-overlap-schedule" : "");
  }

  ClusterSetup setup(std::vector<std::unique_ptr<StepTimeModel>>& times) {
    const std::int64_t page = pick<std::int64_t>({1, 16, 64});
    const bool pulls = flip(2);
    const std::int64_t block = std::max<std::int64_t>(page, 16);
    const std::string prefill = pulls ? vllm("producer", block) : sglang("prefill", page);
    const std::string decode = pulls ? vllm("consumer", block) : sglang("decode", page);
    ClusterSetup setup = pair_of(pool(prefill, times), pool(decode, times));
    setup.prefill.servers = number(1, 3);
    setup.decode.servers = number(1, 3);
    setup.wire_token = wire_token_bytes(deployment_of(decode, kVersion));
    setup.fabric.link.bytes_per_second = pick<double>({2e9, 20e9, 200e9});
    setup.fabric.link.latency = Nanos{number(0, 50'000)};
    setup.fabric.link.setup = Nanos{number(0, 1'000'000)};
    setup.fabric.nics_per_node = number(1, 8);
    setup.route = flip(2) ? RoutePolicy::kRoundRobin : RoutePolicy::kLeastLoaded;
    return setup;
  }

  std::vector<Fault> faults(const ClusterSetup& setup) {
    std::vector<Fault> faults(static_cast<std::size_t>(number(0, 5)));
    for (Fault& fault : faults) {
      fault.kind = pick<Fault::Kind>({Fault::Kind::kKill, Fault::Kind::kDrop, Fault::Kind::kSlow});
      fault.role = flip(2) ? KvHandoff::Role::kPrefill : KvHandoff::Role::kDecode;
      const std::int64_t servers =
          fault.role == KvHandoff::Role::kPrefill ? setup.prefill.servers : setup.decode.servers;
      fault.server = static_cast<std::size_t>(number(0, servers - 1));
      fault.at = SimTime{Nanos{number(0, 3'000'000'000)}};
      fault.share =
          fault.kind == Fault::Kind::kSlow ? 0.01 * static_cast<double>(number(1, 100)) : 1;
      if (fault.kind == Fault::Kind::kSlow && flip(2)) {
        fault.until = fault.at + Nanos{number(0, 2'000'000'000)};
      }
    }
    return faults;
  }

  std::vector<workloads::TraceRequest> requests() {
    std::vector<workloads::TraceRequest> out(static_cast<std::size_t>(number(1, 60)));
    const std::int64_t gap = pick<std::int64_t>({0, 3, 30, 300});
    const std::int64_t longest = pick<std::int64_t>({50, 500, 2000});
    SimTime now;
    for (std::size_t i = 0; i < out.size(); ++i) {
      workloads::TraceRequest& request = out[i];
      request.index = static_cast<std::int64_t>(i);
      now = now + Nanos{1'000'000} * number(0, gap);
      request.arrival = now;
      request.input = Tokens{number(1, longest)};
      request.output = Tokens{number(1, 400)};
      if (flip(2)) {
        const Tokens shared = std::min(request.input, Tokens{number(1, 400)});
        request.content = {{static_cast<std::uint64_t>(number(1, 4)), shared},
                           {1000 + static_cast<std::uint64_t>(i), request.input - shared}};
      }
    }
    return out;
  }

 private:
  static Pool pool(const std::string& line, std::vector<std::unique_ptr<StepTimeModel>>& times) {
    Plan plan = start(deployment_of(line, kVersion));
    times.push_back(step_time_model(plan));
    return {std::move(plan), 1, times.back().get()};
  }
};

bool died(const ClusterSetup& setup, KvHandoff::Role role, std::size_t server) {
  return std::any_of(setup.faults.begin(), setup.faults.end(), [&](const Fault& fault) {
    return fault.kind == Fault::Kind::kKill && fault.role == role && fault.server == server;
  });
}

// What a server that lived holds in the end: nothing, if all requests came to an end.
void expect_drained(const ClusterSetup& setup, const ClusterRun& run) {
  std::array<std::size_t, 2> seen{};
  for (const RankRecord& rank : run.record.ranks) {
    const bool decode = rank.role == "decode";
    const std::size_t server = seen[decode ? 1 : 0]++;
    if (died(setup, decode ? KvHandoff::Role::kDecode : KvHandoff::Role::kPrefill, server) ||
        rank.timeline.empty()) {
      continue;
    }
    const TimelineRow& last = rank.timeline.back();
    ASSERT_EQ(last.kv_used, Bytes{0}) << rank.role << " " << server;
    ASSERT_EQ(last.transfer->kv_held, Bytes{0}) << rank.role << " " << server;
    ASSERT_EQ(last.transfer->requests, 0) << rank.role << " " << server;
  }
}

void expect_rows_conserve(const RankRecord& rank) {
  for (const TimelineRow& row : rank.timeline) {
    ASSERT_EQ(row.kv_used + row.kv_cached + row.kv_free, row.device[index_of(Leaf::kKvPool)]);
    // A prefix that several requests share counts for each, so more may be held than is used.
    ASSERT_TRUE(row.kv_used > Bytes{0} || row.transfer->kv_held == Bytes{0});
  }
}

class ClusterPropertyTest : public PropertyTest {};

TEST_F(ClusterPropertyTest, NothingIsLostOrDoubled) {
  for (current_seed = 0; current_seed < property_cases() / 5; ++current_seed) {
    Case random(static_cast<std::uint64_t>(current_seed));
    std::vector<std::unique_ptr<StepTimeModel>> times;
    ClusterSetup setup = random.setup(times);
    const std::vector<workloads::TraceRequest> requests = random.requests();
    const ClusterRun calm = serve_cluster(setup, requests, false);
    setup.faults = random.faults(setup);
    const ClusterRun run = serve_cluster(setup, requests, false);
    const ClusterRun stepped = serve_cluster(setup, requests, true);
    ASSERT_EQ(run.record.digest, stepped.record.digest) << "seed " << current_seed;
    ASSERT_EQ(run.record.totals.kv_peak, stepped.record.totals.kv_peak);
    ASSERT_EQ(run.record.totals.kv_peak_at, stepped.record.totals.kv_peak_at);
    ASSERT_EQ(run.rows.size(), requests.size()) << "seed " << current_seed;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const RequestRow& row = run.rows[i];
      ASSERT_EQ(calm.rows[i].outcome, RequestOutcome::kFinished) << "seed " << current_seed;
      ASSERT_EQ(calm.rows[i].output, requests[i].output) << "seed " << current_seed;
      if (row.outcome == RequestOutcome::kFinished) {
        ASSERT_EQ(row.output, requests[i].output) << "seed " << current_seed << " row " << i;
        ASSERT_LE(row.arrival, row.first_scheduled);
        ASSERT_LE(row.first_scheduled, row.first_token);
        ASSERT_LE(row.first_token, row.finish);
      } else {
        ASSERT_EQ(row.outcome, RequestOutcome::kFailed) << "seed " << current_seed;
        ASSERT_LE(row.first_scheduled, row.finish) << "seed " << current_seed << " row " << i;
        ASSERT_FALSE(setup.faults.empty());
      }
    }
    expect_drained(setup, run);
    std::for_each(run.record.ranks.begin(), run.record.ranks.end(), expect_rows_conserve);
    ASSERT_FALSE(HasFatalFailure()) << "seed " << current_seed;
  }
}

}  // namespace
}  // namespace oomcast::cluster
