// Lifetimes as the engine's Python has them: a tensor lives as long as a name or a later read holds
// it.
#include "sim/opgraph/graph.hpp"

#include <gtest/gtest.h>

#include "sim/opgraph/program.hpp"

namespace oomcast::opgraph {
namespace {

TensorInfo sized(const char* name, std::int64_t bytes) {
  return {name, "", Leaf::kRuntimeActivations, Affine::fixed(Bytes{bytes})};
}

Bytes peak_of(OpGraph graph) { return Program(std::move(graph)).peak({}).bytes; }

// gate_up 20, activation 10, output 4. Reassigning one variable frees gate_up at the activation;
// a variable of its own keeps it to the end.
TEST(OpGraph, AVariableKeepsItsTensorUntilItIsReassigned) {
  OpGraph reassigned;
  {
    Variable x(reassigned);
    x = reassigned.make(reassigned.op("gate_up", ""), sized("gate_up", 20));
    x = reassigned.make(reassigned.op("act", "", {*x}), sized("act", 10));
    x = reassigned.make(reassigned.op("down", "", {*x}), sized("out", 4));
  }
  EXPECT_EQ(peak_of(std::move(reassigned)), Bytes{30});

  OpGraph kept;
  {
    Variable gate_up(kept, kept.make(kept.op("gate_up", ""), sized("gate_up", 20)));
    Variable x(kept);
    x = kept.make(kept.op("act", "", {*gate_up}), sized("act", 10));
    x = kept.make(kept.op("down", "", {*x}), sized("out", 4));
  }
  EXPECT_EQ(peak_of(std::move(kept)), Bytes{34});
}

TEST(OpGraph, CompiledCodeFreesAtTheLastRead) {
  OpGraph graph;
  const TensorId a = graph.make(graph.op("a", ""), sized("a", 8));
  const TensorId b = graph.make(graph.op("b", "", {a}), sized("b", 4));
  graph.make(graph.op("c", "", {b}), sized("c", 16));
  const Program program(std::move(graph));
  EXPECT_EQ(program.peak({}).bytes, Bytes{20});  // b and c; a went after b was made
  EXPECT_EQ(program.live_set(program.peak({}).op, {}).tensors.size(), 2U);
}

TEST(OpGraph, AViewKeepsItsStorage) {
  OpGraph graph;
  const TensorId base = graph.make(graph.op("qkv", ""), sized("qkv", 12));
  const TensorId q = graph.view(graph.op("split", "", {base}), base, "q");
  const TensorId again = graph.view(graph.op("reshape", "", {q}), q, "q by head");
  EXPECT_EQ(graph.storage(again), base);
  graph.make(graph.op("big", ""), sized("big", 100));
  graph.op("attention", "", {again});
  EXPECT_EQ(peak_of(std::move(graph)), Bytes{112});
}

TEST(OpGraph, WhatIsKeptStaysAndWhatIsResidentDoesNotCount) {
  OpGraph graph;
  const TensorId weights = graph.resident(sized("weights", 1000));
  TensorInfo workspace = sized("workspace", 7);
  workspace.kept = true;
  const OpId first = graph.op("gemm", "", {weights});
  graph.make(first, workspace);
  graph.make(graph.op("later", ""), sized("later", 3));
  EXPECT_EQ(peak_of(std::move(graph)), Bytes{10});
}

TEST(OpGraph, DotNamesOpsAndTensors) {
  OpGraph graph;
  graph.make(graph.op("embedding", "first"), sized("hidden", 1));
  const std::string dot = graph.dot();
  EXPECT_NE(dot.find("embedding"), std::string::npos);
  EXPECT_NE(dot.find("hidden"), std::string::npos);
}

}  // namespace
}  // namespace oomcast::opgraph
