// The serving step's memory without replaying tensors: every tensor of a step is affine in its
// tokens and its logit rows, so the peak is the larger of a few functions, built once per
// deployment. Tensor by tensor: step_program.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/engines/step_peaks.hpp"
#include "sim/engines/vllm/step_program.hpp"

namespace oomcast::vllm {

// How a serving step with this way of execution runs on the stage.
StepKind serving_kind(const Deployment& deployment, int stage, Execution execution);

class StepPeaks final : public oomcast::StepPeaks {
 public:
  StepPeaks(const Deployment& deployment, int stage);

  // Steps within the captured sizes run inside CUDA graphs, whose activations lie in the private
  // pool and are counted there.
  [[nodiscard]] StepSizes at(const StepLoad& load, const StepLoad& before) const override;
  // How such a step runs.
  [[nodiscard]] Execution execution_of(Tokens tokens, std::int64_t rows) const;

 private:
  [[nodiscard]] StepSizes highest(const StepLoad& load) const;

  struct Moment {
    opgraph::Affine live;
    std::array<opgraph::Affine, kStepLeaves.size()> by_leaf;
  };
  // The envelope of a way of execution, and what it has for each leaf of a step.
  std::array<std::vector<Moment>, kExecutions> moments_;
  Execution uncaptured_ = Execution::kEager;
  bool piecewise_ = false;
  bool full_ = false;
  std::array<StepSizes, 257> of_decodes_{};  // by requests: most steps are of few decodes
  Tokens captured_;                          // forward passes up to here run in graphs
};

}  // namespace oomcast::vllm
