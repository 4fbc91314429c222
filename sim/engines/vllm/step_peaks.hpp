// The serving step's memory without replaying tensors: every tensor of a step is affine in its
// tokens and its logit rows, so the live set of each moment is too, and the peak is the larger of a
// few functions, built once per deployment. Tensor by tensor: step_memory.hpp.
#pragma once

#include <array>
#include <cstdint>

#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/step_memory.hpp"
#include "sim/ledger/classes.hpp"

namespace oomcast::vllm {

class StepPeaks {
 public:
  // Leaves that a step's tensors belong to.
  static constexpr std::array<Leaf, 4> kLeaves = {Leaf::kRuntimeActivations,
                                                  Leaf::kRuntimeIntermediates, Leaf::kRuntimeLogits,
                                                  Leaf::kWorkspaceMoe};
  using Sizes = std::array<Bytes, kLeaves.size()>;

  StepPeaks(const Deployment& deployment, StageRole role);

  // Bytes alive at the step's highest moment. Steps within the captured sizes run inside CUDA
  // graphs, whose activations lie in the private pool and are counted there.
  [[nodiscard]] Sizes at(Tokens tokens, std::int64_t rows) const;

 private:
  struct Moment {
    Sizes per_token{};
    Sizes per_row{};
  };
  Moment forward_;
  Moment sampler_;
  Tokens captured_;  // forward passes up to here run in graphs
};

}  // namespace oomcast::vllm
