// Points that share work end as startups that do not.
#include "sim/search/point.hpp"

#include <gtest/gtest.h>

#include <boost/random/mersenne_twister.hpp>
#include <boost/random/uniform_int_distribution.hpp>

namespace oomcast::search {
namespace {

PointBase base_of(const std::string& line, const std::string& gpu, const std::string& version) {
  DeploymentInput input;
  input.launch_line = line;
  input.gpu = gpu;
  input.engine_version = version;
  return {resolve_input(input), std::nullopt, nullptr, false, nullptr};
}

// What a runner of its own finds: nothing to share.
PointResult alone(const PointBase& base, const Settings& settings) {
  return PointRunner(base).run(settings);
}

PointResult without_memo(const PointBase& base, const Settings& settings) {
  PointRunner runner(base);
  const Plan plan = start(runner.resolve(settings));
  PointResult result;
  result.kind = plan.outcome().kind;
  result.kv_tokens = plan.report().kv_tokens;
  for (const RankState* rank : plan.ranks()) {
    const Bytes peak = rank->peaks.device().bytes;
    result.ranks.push_back(
        {rank->first_rank, rank->ranks, peak, rank->memory.ledger().device_total() - peak});
  }
  return result;
}

struct Case {
  const char* line;
  const char* gpu;
  const char* version;
};

class SharedWork : public ::testing::TestWithParam<Case> {};

TEST_P(SharedWork, ChangesNoFigure) {
  const PointBase base = base_of(GetParam().line, GetParam().gpu, GetParam().version);
  PointRunner shared(base);
  boost::random::mt19937 random(7);
  const auto pick = [&](std::initializer_list<const char*> values) {
    boost::random::uniform_int_distribution<std::size_t> place(0, values.size() - 1);
    return std::string(*(values.begin() + place(random)));
  };
  for (int i = 0; i < 60; ++i) {
    const Settings settings = {
        {"tensor-parallel-size", pick({"1", "2"})},
        {"max-num-batched-tokens", pick({"2048", "8192"})},
        {"max-num-seqs", pick({"16", "256"})},
        {"gpu-memory-utilization", pick({"0.3", "0.8", "0.9", "0.93", "0.97", "0.99"})}};
    const PointResult found = shared.run(settings);
    const PointResult plain = without_memo(base, settings);
    EXPECT_EQ(found.kind, plain.kind);
    EXPECT_EQ(found.kv_tokens, plain.kv_tokens);
    ASSERT_EQ(found.ranks.size(), plain.ranks.size());
    for (std::size_t rank = 0; rank < found.ranks.size(); ++rank) {
      EXPECT_EQ(found.ranks[rank].peak, plain.ranks[rank].peak);
      EXPECT_EQ(found.ranks[rank].headroom, plain.ranks[rank].headroom);
    }
    EXPECT_EQ(found, alone(base, settings));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Versions, SharedWork,
    ::testing::Values(Case{"vllm serve Qwen/Qwen3-8B --max-model-len 8192", "RTX4090", "0.11.0"},
                      Case{"vllm serve Qwen/Qwen3-8B --max-model-len 8192", "L40S", "0.19.0"},
                      Case{"vllm serve Qwen/Qwen3-8B --max-model-len 8192", "A10", "0.33.0"},
                      Case{"vllm serve Qwen/Qwen3-30B-A3B --max-model-len 8192", "A100-80GB",
                           "0.26.0"},
                      Case{"vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 4096 "
                           "--pipeline-parallel-size 2",
                           "H100-80GB", "0.33.0"}));

TEST(Point, WhatTheEngineRefusesIsAResult) {
  const PointBase base = base_of("vllm serve Qwen/Qwen3-8B", "H100-80GB", "0.19.0");
  const PointResult result = PointRunner(base).run({{"tensor-parallel-size", "3"}});
  EXPECT_EQ(result.kind, OutcomeKind::kConfigRejected);
  EXPECT_NE(result.message, "");
}

TEST(Point, AnotherCard) {
  const PointBase base = base_of("vllm serve Qwen/Qwen3-8B", "H100-80GB", "0.19.0");
  PointRunner runner(base);
  const auto tokens = [&](const char* gpu) { return *runner.run({{"gpu", gpu}}).kv_tokens; };
  EXPECT_EQ(*runner.run({}).kv_tokens, tokens("H100-80GB"));
  EXPECT_GT(tokens("H200"), tokens("H100-80GB"));
}

}  // namespace
}  // namespace oomcast::search
