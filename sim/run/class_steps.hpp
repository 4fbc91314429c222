// Steps as sums by class: the highest moment of a step from the op graph's envelope, posted to the
// ledger as a whole.
#pragma once

#include "sim/engines/vllm/step_peaks.hpp"
#include "sim/run/step_memory.hpp"

namespace oomcast {

class ClassSteps final : public StepMemory {
 public:
  ClassSteps(const vllm::Deployment& deployment, vllm::StageState& stage);

  // After an outcome the books show the moment before.
  std::optional<Outcome> run(const StepRun& steps) override;
  [[nodiscard]] bool repeats(Tokens /*tokens*/, std::int64_t /*rows*/) const override {
    return true;
  }
  void show(std::size_t moment, TimelineRow& row) const override;

 private:
  [[nodiscard]] Outcome out_of_memory(const StepRun& steps, Leaf leaf, Bytes wanted) const;

  const vllm::Deployment& deployment_;
  vllm::StageState& stage_;
  vllm::StepPeaks step_peaks_;
  vllm::StepPeaks::Sizes live_{};
};

}  // namespace oomcast
