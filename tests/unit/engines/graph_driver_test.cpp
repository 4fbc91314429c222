// Driver memory of graphs from their nodes, on paper, with the file's values: 11 KiB a node, 104
// KiB a graph, 50 KiB a sum by NCCL.
#include "sim/engines/graph_driver.hpp"

#include <gtest/gtest.h>

#include "models/catalog.hpp"
#include "sim/core/error.hpp"
#include "sim/run/plan.hpp"

namespace oomcast {
namespace {

AnyDeployment resolved(const std::string& line, const std::vector<std::string>& assume = {}) {
  DeploymentInput input;
  input.launch_line = line;
  input.gpu = "H100-80GB";
  input.assume = assume;
  return resolve_input(input);
}

Bytes kib(std::int64_t count) { return kKiB * count; }

constexpr models::LayerRange kFour{0, 4};

// Qwen3 norms q and k: 12 nodes a layer, 10 of them outside of the attention call.
TEST(GraphDriver, NodesOfADenseLayer) {
  const AnyDeployment any = resolved("vllm serve Qwen/Qwen3-8B");
  const EngineDeployment& plain = any.common();
  EXPECT_EQ(whole_graph(plain.graph_costs, *plain.model, kFour, {}), kib(4 * 12 * 11 + 104));
  EXPECT_EQ(graph_pieces(plain.graph_costs, *plain.model, kFour, {}), kib(4 * 10 * 11 + 5 * 104));
  EXPECT_EQ(whole_graph(plain.graph_costs, *plain.model, kFour, {2, false}),
            kib(4 * 14 * 11 + 104));
  EXPECT_EQ(whole_graph(plain.graph_costs, *plain.model, kFour, {2, true}),
            kib(4 * 14 * 11 + 104 + 4 * 2 * 50));
}

TEST(GraphDriver, ExpertsAndQuantisedInputsAddNodes) {
  const AnyDeployment experts = resolved("vllm serve Qwen/Qwen3-30B-A3B");
  EXPECT_EQ(whole_graph(experts.common().graph_costs, *experts.common().model, kFour, {}),
            kib(4 * (12 + 11) * 11 + 104));
  const AnyDeployment floats = resolved("vllm serve Qwen/Qwen3-8B-FP8");
  EXPECT_EQ(whole_graph(floats.common().graph_costs, *floats.common().model, kFour, {}),
            kib(4 * (12 + 2) * 11 + 104));
}

TEST(GraphDriver, DriversBefore550TakeMore) {
  for (const char* line :
       {"vllm serve Qwen/Qwen3-8B", "python -m sglang.launch_server --model-path Qwen/Qwen3-8B"}) {
    const AnyDeployment old = resolved(line, {"driver=535.247.01"});
    EXPECT_EQ(whole_graph(old.common().graph_costs, *old.common().model, kFour, {}),
              kib(4 * 12 * 47 + 459));
    EXPECT_EQ(resolved(line, {"driver=550"}).common().graph_costs.node, kib(11));
  }
  EXPECT_THROW(resolved("vllm serve Qwen/Qwen3-8B", {"driver=new"}), ConfigError);
}

// Two ranks reach each other over PCIe, more do not (vLLM, distributed/custom_all_reduce.py).
TEST(GraphDriver, NcclSumsWhereTheEngineHasNoKernel) {
  const comm::EngineVersion engine{comm::Engine::kVllm, {{0, 19, 0}}};
  const auto sums = [&](const char* card, int tp, bool custom) {
    return layer_sums(models::find_gpu(card), tp, engine, custom);
  };
  EXPECT_EQ(sums("L40S", 1, true).count, 0);
  EXPECT_FALSE(sums("L40S", 2, true).by_nccl);
  EXPECT_TRUE(sums("L40S", 4, true).by_nccl);
  EXPECT_FALSE(sums("H100-80GB", 4, true).by_nccl);
  EXPECT_TRUE(sums("H100-80GB", 4, false).by_nccl);
}

}  // namespace
}  // namespace oomcast
