// Runs a step's program on a card during startup: each op's tensors appear in order, and go when
// the program frees them; what it keeps stays.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "sim/engines/startup_tag.hpp"
#include "sim/ledger/card_memory.hpp"
#include "sim/opgraph/program.hpp"

namespace oomcast::vllm {

// Calls before_op(OpId) before an op's tensors are made and after_made(OpId) when they are. Returns
// the leaf of the tensor for which memory ran out, with which it ends (the card's message tells).
// What stays afterwards is added to `kept`, if given.
template <typename BeforeOp, typename AfterMade>
std::optional<Leaf> run_program(const opgraph::Program& program, const opgraph::StepShape& shape,
                                std::string_view phase, CardMemory& memory, BeforeOp before_op,
                                AfterMade after_made,
                                std::vector<CardMemory::Tensor>* kept = nullptr) {
  const opgraph::OpGraph& graph = program.graph();
  std::vector<CardMemory::Tensor> live(graph.tensor_count());
  std::uint32_t index = 0;
  for (const opgraph::Program::Step& step : program.steps()) {
    const opgraph::OpId op{index++};
    before_op(op);
    for (const opgraph::TensorId id : step.made) {
      const opgraph::TensorInfo& tensor = graph.info(id);
      const auto made =
          memory.allocate(tensor.leaf, tensor.bytes.at(shape), startup_tag(phase, tensor.leaf));
      if (!made) {
        return tensor.leaf;
      }
      live[index_of(id)] = *made;
      if (tensor.kept && kept != nullptr) {
        kept->push_back(*made);
      }
    }
    after_made(op);
    for (const opgraph::TensorId id : step.freed) {
      memory.free(live[index_of(id)]);
    }
    if (graph.info(op).empties_cache) {
      memory.empty_cache();
    }
  }
  return std::nullopt;
}

}  // namespace oomcast::vllm
