// Steps as sums by class: the highest moment of a step from the op graph's envelope, posted to the
// ledger as a whole.
#pragma once

#include <memory>
#include <vector>

#include "sim/engines/rank_state.hpp"
#include "sim/run/step_memory.hpp"

namespace oomcast {

// A tensor that the first step makes and later ones keep.
struct FirstStepTensor {
  Leaf leaf = Leaf::kWorkspaceGemm;
  Bytes bytes;
};

class ClassSteps final : public StepMemory {
 public:
  // `rank` must outlive the steps.
  ClassSteps(RankState& rank, std::unique_ptr<StepPeaks> peaks,
             std::vector<FirstStepTensor> first = {});

  // After an outcome the books show the moment before.
  std::optional<Outcome> run(const StepRun& steps) override;
  [[nodiscard]] bool repeats(Tokens tokens, std::int64_t rows) const override;
  void show(std::size_t moment, TimelineRow& row) const override;
  [[nodiscard]] std::uint64_t postings() const override { return postings_; }

 private:
  bool fits_into_cached(const StepSizes& wanted, SimTime at);
  [[nodiscard]] Outcome out_of_memory(const StepRun& steps, Leaf leaf, Bytes wanted) const;

  RankState& rank_;
  std::unique_ptr<StepPeaks> step_peaks_;
  std::vector<FirstStepTensor> first_;  // until they are made
  StepLoad before_;                     // the step run last
  StepSizes live_{};
  std::uint64_t postings_ = 1;
};

}  // namespace oomcast
