#include "sim/search/grid.hpp"

#include <gtest/gtest.h>

#include <set>

namespace oomcast::search {
namespace {

launch::Launch vllm_line() { return launch::parse_launch("vllm serve Qwen/Qwen3-8B"); }

Grid grid(const std::vector<std::string>& vary, const std::vector<std::string>& where = {}) {
  Problems problems;
  std::vector<Axis> axes;
  for (const std::string& text : vary) {
    axes.push_back(parse_axis(text, problems));
  }
  problems.raise_if_any();
  return {vllm_line(), axes, where};
}

std::string refusal(const std::vector<std::string>& vary,
                    const std::vector<std::string>& where = {}) {
  try {
    grid(vary, where);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(Grid, EveryCombinationTheLastAxisFastest) {
  const Grid points = grid({"tp=1,2", "seqs=64,128,256"});
  EXPECT_EQ(points.size(), 6U);
  EXPECT_EQ(points.names(), (std::vector<std::string>{"tensor-parallel-size", "max-num-seqs"}));
  EXPECT_EQ(points.at(4), (Settings{{"tensor-parallel-size", "2"}, {"max-num-seqs", "128"}}));
}

TEST(Grid, ConditionsOverVariedAndGivenFlags) {
  EXPECT_EQ(grid({"tp=1,2,4,8", "pp=1,2,4"}, {"tp*pp<=8"}).size(), 9U);
  EXPECT_EQ(grid({"tp=1,2,4,8"}, {"tp*pp<=4"}).size(), 3U);  // pp from the line: 1
  EXPECT_NE(refusal({"tp=16"}, {"tp<=8"}).find("none of 1"), std::string::npos);
  EXPECT_NE(refusal({"tp=1"}, {"chat_template<=8"}), "");
  EXPECT_NE(refusal({"kv-cache-dtype=auto"}, {"kv_cache_dtype<=8"}).find("auto"),
            std::string::npos);
}

TEST(Grid, WhatCannotBeIsRefused) {
  EXPECT_NE(refusal({}).find("--vary"), std::string::npos);
  EXPECT_NE(refusal({"max-num-sequences=1"}).find("max-num-seqs"), std::string::npos);
  EXPECT_NE(refusal({"tp=1,2", "tensor-parallel-size=4"}).find("once"), std::string::npos);
  // 10^12 points are refused with their number, before anything is laid out.
  EXPECT_NE(refusal({"tp=1..1000000+1", "max-num-seqs=1..1000000+1"}).find("1e+12"),
            std::string::npos);
}

TEST(Grid, OrderHoldsEachPointOnceAndLetsTheBudgetVaryFastest) {
  const Grid points = grid({"gpu-memory-utilization=0.8,0.9", "max-num-seqs=64,128"});
  const std::vector<std::size_t> order = points.order();
  EXPECT_EQ(std::set<std::size_t>(order.begin(), order.end()).size(), 4U);
  EXPECT_EQ(points.at(order[0])[1], points.at(order[1])[1]);
}

}  // namespace
}  // namespace oomcast::search
