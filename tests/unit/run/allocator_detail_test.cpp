// Serving call by call on PyTorch's allocator: arithmetic on paper, the same bytes however the run
// is computed, conservation over random deployments, and an out-of-memory by fragmentation.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"
#include "sim/run/fixes.hpp"
#include "sim/run/plan.hpp"
#include "sim/run/replay.hpp"

namespace oomcast {
namespace {

class Unread final : public RequestSink {
 public:
  void row(const RequestRow& /*row*/) override {}
};

struct Case {
  std::string launch;
  std::string gpu = "H100-80GB";
  std::string synthetic;
  std::uint64_t seed = 1;

  [[nodiscard]] AnyDeployment deployment() const {
    DeploymentInput input;
    input.launch_line = launch;
    input.gpu = gpu;
    input.engine_version = "0.19.0";
    return resolve_input(input);
  }
  [[nodiscard]] std::unique_ptr<workloads::RequestStream> stream() const {
    workloads::WorkloadOptions workload;
    workload.synthetic = {synthetic};
    workload.seed = seed;
    return workloads::make_workload(workload);
  }
};

RunRecord run(const Case& given, ReplayOptions options = {}) {
  options.detail = Detail::kAllocator;
  const AnyDeployment deployment = given.deployment();
  const auto stream = given.stream();
  const auto model = step_time_model(deployment);
  Unread sink;
  RunRecord record;
  replay(start(deployment), *model, *stream, sink, options, record);
  return record;
}

ReplayOptions step_by_step() {
  ReplayOptions options;
  options.step_by_step = true;
  return options;
}
ReplayOptions without_memory() {
  ReplayOptions options;
  options.remembers_steps = false;
  return options;
}

Bytes sum(const LeafBytes& leaves) {
  return std::accumulate(leaves.begin(), leaves.end(), Bytes{});
}

// Logical sum = physical sum in every row: what lies outside PyTorch does not change while serving.
void expect_rows_conserve(const RankRecord& rank) {
  ASSERT_FALSE(rank.startup.empty());
  const MemoryViews& ready = rank.startup.back().views;
  for (const TimelineRow& row : rank.timeline) {
    ASSERT_EQ(sum(row.device), row.views.device_used);
    ASSERT_EQ(row.views.device_used - row.views.torch_reserved,
              ready.device_used - ready.torch_reserved);
    ASSERT_LE(row.views.torch_allocated, row.views.torch_reserved);
    ASSERT_TRUE(row.torch.has_value());
    ASSERT_LE(row.torch->inactive_split, row.views.torch_reserved - row.views.torch_allocated);
    ASSERT_LE(row.views.device_used, rank.device_total);
    ASSERT_EQ(row.kv_used + row.kv_cached + row.kv_free, row.device[index_of(Leaf::kKvPool)]);
    ASSERT_LE(row.views.torch_reserved, rank.allocator->highest_reserved);
  }
}

void expect_snapshot_is_the_end(const RankRecord& rank) {
  const AllocatorRecord& allocator = *rank.allocator;
  Bytes reserved;
  Bytes allocated;
  for (const allocator::SegmentSnapshot& segment : allocator.history.segments) {
    reserved += segment.size;
    allocated += segment.allocated;
    for (const allocator::BlockLayout& block : segment.blocks) {
      ASSERT_TRUE(block.use == allocator::BlockUse::kFree || block.tag != 0);
    }
  }
  ASSERT_EQ(reserved, allocator.stats.reserved);
  ASSERT_EQ(allocated, allocator.stats.allocated);
}

void expect_same_history(const MemoryHistory& left, const MemoryHistory& right) {
  ASSERT_EQ(left.events.size(), right.events.size());
  for (std::size_t i = 0; i < left.events.size(); ++i) {
    ASSERT_EQ(left.events[i].at, right.events[i].at) << i;
    ASSERT_EQ(left.events[i].event.action, right.events[i].event.action) << i;
    ASSERT_EQ(left.events[i].event.address, right.events[i].event.address) << i;
    ASSERT_EQ(left.events[i].event.size, right.events[i].event.size) << i;
  }
}

TEST(AllocatorDetail, ADecodeOnPaper) {
  // One row in a full graph: only the sampler allocates. 4096 x 2 B of hidden states, logits of
  // 128,256 x 2 B, in fp32 4 B, probabilities and noise 4 B each; all are multiples of 512 B.
  const RunRecord record =
      run({.launch = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 4096",
           .synthetic = {"poisson:rate=1,requests=1,input=fixed(100),output=fixed(12)"}});
  const RankRecord& rank = record.ranks.at(0);
  const TimelineRow& last = rank.timeline.back();
  EXPECT_EQ(last.device[index_of(Leaf::kRuntimeLogits)], Bytes{128'256 * (2 + 4 + 4 + 4)});
  EXPECT_EQ(last.views.torch_allocated - rank.startup.back().views.torch_allocated,
            Bytes{4096 * 2 + 128'256 * 14});
  // After the step nothing of it is left.
  EXPECT_EQ(rank.allocator->stats.allocated, rank.startup.back().views.torch_allocated);
}

// Least memory that a rank has free at `ready` with `kv` bytes for the KV cache.
Bytes free_with_kv(Case given, Bytes kv) {
  given.launch += fmt::format("--kv-cache-memory-bytes {}", kv.count());
  const vllm::Startup startup = vllm::simulate_startup(*given.deployment().as<vllm::Deployment>());
  Bytes least = startup.stages.front().memory.ledger().device_free();
  for (const vllm::StageState& stage : startup.stages) {
    least = std::min(least, stage.memory.ledger().device_free());
  }
  return least;
}

// A deployment and a workload at random, on half of them with little memory beside the KV cache;
// small enough that each runs in milliseconds.
Case random_case(RandomStream& stream) {
  const auto pick = [&stream](const auto& choices) {
    return choices[static_cast<std::size_t>(
        uniform_int(stream, 0, static_cast<std::int64_t>(choices.size()) - 1))];
  };
  const std::array<std::string, 6> models = {
      "Qwen/Qwen2.5-0.5B-Instruct",   "Qwen/Qwen3-0.6B",
      "Qwen/Qwen3-30B-A3B",           "meta-llama/Llama-3.1-8B-Instruct",
      "deepseek-ai/DeepSeek-V2-Lite", "google/gemma-2-2b-it"};
  const std::array<std::string, 6> settings = {
      "",
      "expandable_segments:True",
      "max_split_size_mb:64",
      "roundup_power2_divisions:4",
      "garbage_collection_threshold:0.8,per_process_memory_fraction:0.97",
      "max_split_size_mb:128,garbage_collection_threshold:0.6"};
  const std::array<std::string, 5> shapes = {"", "-tp 2", "-pp 2", "-tp 2 -pp 2", "-tp 1"};
  const std::array<std::string, 4> graphs = {
      "", "--enforce-eager", "--compilation-config '{\"cudagraph_capture_sizes\": [1, 2, 4, 8]}'",
      "--max-num-seqs 24"};
  const std::array<std::string, 3> budgets = {"512", "2048", "8192"};
  Case out;
  const std::string conf = pick(settings);
  out.launch = fmt::format(
      "{}vllm serve {} --trust-remote-code --max-model-len 8192 --gpu-memory-utilization 0.3 "
      "--max-num-batched-tokens {} {} {} ",
      conf.empty() ? "" : "PYTORCH_CUDA_ALLOC_CONF=" + conf + " ", pick(models), pick(budgets),
      pick(shapes), pick(graphs));
  const bool tight = uniform_int(stream, 0, 1) == 1;
  // What the sampler's warm-up leaves cached would be room enough for more rows than these.
  out.launch += tight ? "--max-num-seqs 8 " : "";
  const Bytes room = Bytes{uniform_int(stream, 0, (kMiB * 300).count())};
  const Bytes kv = tight ? kGiB + free_with_kv(out, kGiB) - room : kGiB;
  out.launch += fmt::format("--kv-cache-memory-bytes {}", std::max(kGiB, kv).count());
  out.synthetic =
      fmt::format("poisson:rate={},requests={},input=uniform(1,{}),output=uniform(1,{})",
                  uniform_int(stream, 1, 200), uniform_int(stream, 1, 40),
                  uniform_int(stream, 2, 8000), uniform_int(stream, 2, 150));
  out.seed = static_cast<std::uint64_t>(uniform_int(stream, 1, 1'000'000));
  return out;
}

TEST(AllocatorDetail, RandomDeploymentsConserveAndDoNotDependOnHowTheyAreRun) {
  RandomStream stream = random_stream(2026, "allocator detail");
  int served = 0;
  int ran_out = 0;
  std::int64_t retries = 0;
  for (int round = 0; round < 80; ++round) {
    const Case given = random_case(stream);
    SCOPED_TRACE(given.launch + " | " + given.synthetic);
    const RunRecord fast = run(given);
    for (const ReplayOptions& options : {step_by_step(), without_memory()}) {
      const RunRecord other = run(given, options);
      ASSERT_EQ(other.digest, fast.digest);
      ASSERT_EQ(other.ranks.size(), fast.ranks.size());
      for (std::size_t i = 0; i < fast.ranks.size(); ++i) {
        const AllocatorRecord& left = *fast.ranks[i].allocator;
        const AllocatorRecord& right = *other.ranks[i].allocator;
        ASSERT_EQ(left.stats.reserved, right.stats.reserved);
        ASSERT_EQ(left.stats.alloc_retries, right.stats.alloc_retries);
        ASSERT_EQ(left.stats.device_allocs, right.stats.device_allocs);
        ASSERT_EQ(left.highest_reserved_at, right.highest_reserved_at);
        expect_same_history(left.history, right.history);
      }
    }
    for (const RankRecord& rank : fast.ranks) {
      expect_rows_conserve(rank);
      expect_snapshot_is_the_end(rank);
      retries += rank.allocator->stats.alloc_retries;
    }
    served += fast.outcome.fits() ? 1 : 0;
    ran_out += fast.outcome.kind == OutcomeKind::kRuntimeOom ? 1 : 0;
  }
  // The choices above reach what they are made for.
  EXPECT_GT(served, 40);
  EXPECT_GT(ran_out, 3);
  EXPECT_GT(retries, ran_out);
}

// Prompts of changing size on a card with about a gibibyte beside the KV cache.
Case tight(const std::string& settings, const char* kv) {
  return {
      .launch = settings +
                "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384 "
                "--max-num-batched-tokens 16384 --max-num-seqs 16 --enforce-eager "
                "--kv-cache-memory-bytes " +
                kv,
      .synthetic = {"poisson:rate=20,requests=200,input=uniform(100,16000),output=uniform(2,50)"}};
}
constexpr const char* kFits = "65498251264";      // 61.0 GiB
constexpr const char* kInPieces = "65712999628";  // 61.2 GiB

TEST(AllocatorDetail, FragmentationEndsARunThatExpandableSegmentsServe) {
  EXPECT_TRUE(run(tight("", kFits)).outcome.fits());
  const Case given = tight("", kInPieces);
  const RunRecord failed = run(given);
  ASSERT_EQ(failed.outcome.kind, OutcomeKind::kRuntimeOom);
  EXPECT_NE(failed.outcome.message.find("CUDA out of memory. Tried to allocate"),
            std::string::npos);
  EXPECT_NE(failed.outcome.message.find("in pieces"), std::string::npos);
  const RankRecord& rank = failed.ranks.at(0);
  expect_rows_conserve(rank);
  expect_snapshot_is_the_end(rank);
  const AllocatorRecord::Failure& failure = rank.allocator->failure.value();
  EXPECT_TRUE(failure.is_fragmented());
  EXPECT_GE(failure.cached, failure.requested);
  EXPECT_LT(failure.device_free, failure.requested);
  EXPECT_EQ(failed.outcome.leaf, failure.site.leaf);
  // The last row shows that moment: its tensors are the live ones.
  Bytes live;
  for (const AllocatorRecord::Failure::Live& tensor : failure.live) {
    live += tensor.bytes;
  }
  const TimelineRow& last = rank.timeline.back();
  EXPECT_EQ(live, last.device[index_of(Leaf::kRuntimeActivations)] +
                      last.device[index_of(Leaf::kRuntimeIntermediates)] +
                      last.device[index_of(Leaf::kRuntimeLogits)] +
                      last.device[index_of(Leaf::kWorkspaceAttention)]);
  const MemoryHistory::Event& end = rank.allocator->history.events.back();
  EXPECT_EQ(end.event.action, allocator::Action::kOom);
  EXPECT_EQ(end.at, failure.at);

  EXPECT_TRUE(
      run(tight("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ", kInPieces)).outcome.fits());
  ReplayOptions options;
  options.detail = Detail::kAllocator;
  const AnyDeployment deployment = given.deployment();
  const std::vector<Fix> fixes = find_runtime_fixes(
      deployment.common(), failed, *step_time_model(deployment),
      [&given] { return given.stream(); }, options);
  ASSERT_FALSE(fixes.empty());
  EXPECT_EQ(fixes.front().change, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
}

TEST(AllocatorDetail, AFailedStartupHasItsHistory) {
  const RunRecord failed =
      run({.launch = "vllm serve Qwen/Qwen3-8B --dtype half",
           .gpu = "T4",
           .synthetic = {"poisson:rate=1,requests=1,input=fixed(100),output=fixed(12)"}});
  ASSERT_EQ(failed.outcome.kind, OutcomeKind::kStartupOom);
  EXPECT_EQ(failed.ranks.at(0).allocator->history.events.back().event.action,
            allocator::Action::kOom);
}

}  // namespace
}  // namespace oomcast
