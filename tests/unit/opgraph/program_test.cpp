#include "sim/opgraph/program.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/core/random.hpp"

namespace oomcast::opgraph {
namespace {

TensorInfo per(ShapeVar var, std::int64_t bytes, const char* name = "t") {
  return {name, "", Leaf::kRuntimeLogits, Affine::per(var, Bytes{bytes})};
}

// A moment that grows with tokens and one that grows with rows: each is the peak of some shapes; a
// third that never is does not stay in the envelope.
TEST(Program, TheEnvelopeHoldsTheMomentsThatCanBeHighest) {
  OpGraph graph;
  graph.make(graph.op("small", ""), per(ShapeVar::kTokens, 3));
  graph.make(graph.op("forward", ""), per(ShapeVar::kTokens, 10));
  graph.make(graph.op("sampler", ""), per(ShapeVar::kRows, 100));
  const Program program(std::move(graph));
  EXPECT_EQ(program.envelope().size(), 2U);
  EXPECT_EQ(program.peak({1000, 1, 1}).bytes, Bytes{10'000});
  EXPECT_EQ(program.peak({1000, 101, 101}).bytes, Bytes{10'100});
  EXPECT_EQ(program.peak({1000, 100, 100}).bytes, Bytes{10'000});  // of equals the first
}

TEST(Program, LeavesOfTheHighestMoment) {
  OpGraph graph;
  const OpId op = graph.op("both", "");
  graph.make(op, {"a", "", Leaf::kWorkspaceMoe, Affine::fixed(Bytes{5})});
  graph.make(op, {"b", "", Leaf::kRuntimeLogits, Affine::fixed(Bytes{6})});
  const Program program(std::move(graph));
  const auto leaves = program.peak_by_leaf({});
  EXPECT_EQ(leaves[oomcast::index_of(Leaf::kWorkspaceMoe)], Bytes{5});
  EXPECT_EQ(leaves[oomcast::index_of(Leaf::kRuntimeLogits)], Bytes{6});
  EXPECT_EQ(program.live_set(program.peak({}).op, {}).bytes(), Bytes{11});
}

TEST(Program, AnEmptyProgramHasNoPeak) {
  const Program program{OpGraph{}};
  EXPECT_EQ(program.peak({8, 8, 8}).bytes, Bytes{0});
  EXPECT_TRUE(program.envelope().empty());
}

TEST(Program, LiveRangesAreDrawn) {
  OpGraph graph;
  const TensorId a = graph.make(graph.op("one", ""), per(ShapeVar::kTokens, 512, "a"));
  graph.make(graph.op("two", ""), per(ShapeVar::kTokens, 512, "b"));
  graph.op("three", "", {a});
  graph.make(graph.op("four", ""), per(ShapeVar::kTokens, 1, "too small"));
  EXPECT_EQ(Program(std::move(graph)).draw({2, 1, 1}, 4, Bytes{100}),
            "###.     1.0 KiB  a\n"
            ".#..     1.0 KiB  b\n");
}

// Against a second way of counting: at each op, every tensor whose range covers it.
TEST(Program, RandomGraphsAgreeWithCountingEachOp) {
  RandomStream random = random_stream(20261129, "op graphs");
  for (int round = 0; round < 300; ++round) {
    OpGraph graph;
    std::vector<TensorId> made;
    const int ops = 1 + static_cast<int>(random() % 30);
    for (int i = 0; i < ops; ++i) {
      std::vector<TensorId> reads;
      for (int k = 0; k < 2 && !made.empty(); ++k) {
        reads.push_back(made[random() % made.size()]);
      }
      const OpId op = graph.op("op", "", reads);
      if (random() % 4 == 0 && !made.empty()) {
        made.push_back(graph.view(op, made[random() % made.size()], "view"));
      } else {
        made.push_back(graph.make(op, per(static_cast<ShapeVar>(random() % kShapeVars),
                                          1 + static_cast<int>(random() % 9))));
      }
    }
    const Program program(std::move(graph));
    for (int shape_round = 0; shape_round < 5; ++shape_round) {
      const StepShape shape{static_cast<std::int64_t>(random() % 50),
                            static_cast<std::int64_t>(random() % 50),
                            static_cast<std::int64_t>(random() % 50)};
      Bytes highest;
      for (int i = 0; i < ops; ++i) {
        highest =
            std::max(highest, program.live_set(OpId{static_cast<std::uint32_t>(i)}, shape).bytes());
      }
      EXPECT_EQ(program.peak(shape).bytes, highest);
      EXPECT_EQ(program.peak_among(shape, [](const auto&) { return true; })->bytes, highest);
    }
    // Everything made is freed exactly once.
    std::size_t balance = 0;
    for (const Program::Step& step : program.steps()) {
      balance += step.made.size();
      balance -= step.freed.size();
    }
    EXPECT_EQ(balance, 0U);
  }
}

}  // namespace
}  // namespace oomcast::opgraph
