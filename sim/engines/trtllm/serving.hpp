// From a deployment to the scheduler that serves it, the memory of its steps, and what a replay
// cannot model of TensorRT-LLM.
#pragma once

#include "sim/core/error.hpp"
#include "sim/engines/step_peaks.hpp"
#include "sim/engines/trtllm/deployment.hpp"
#include "sim/engines/trtllm/scheduler.hpp"

namespace oomcast::trtllm {

SchedulerConfig scheduler_config(const Deployment& deployment, Blocks pool_blocks);

// Adds a problem for each thing that can be planned but not served here.
void check_serving(const Deployment& deployment, Problems& problems);

class StepPeaks final : public oomcast::StepPeaks {
 public:
  StepPeaks(const Deployment& deployment, int stage) : deployment_(deployment), stage_(stage) {}

  // Captured batches of generations keep everything in the graphs' pool.
  [[nodiscard]] StepSizes at(const StepLoad& load, const StepLoad& before) const override;

 private:
  const Deployment& deployment_;
  int stage_;
};

}  // namespace oomcast::trtllm
