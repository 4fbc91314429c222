// The memory of a serving step by class: what its tensors come to at their highest moment.
#pragma once

#include <array>
#include <cstdint>

#include "sim/core/units.hpp"
#include "sim/ledger/classes.hpp"

namespace oomcast {

// Leaves that a step's tensors belong to, and their bytes at one moment.
inline constexpr std::array<Leaf, 5> kStepLeaves = {
    Leaf::kRuntimeActivations, Leaf::kRuntimeIntermediates, Leaf::kRuntimeLogits,
    Leaf::kWorkspaceAttention, Leaf::kWorkspaceMoe};
using StepSizes = std::array<Bytes, kStepLeaves.size()>;

// What a step's tensors depend on.
struct StepLoad {
  Tokens tokens;
  std::int64_t rows = 0;      // with logits
  bool decodes_only = false;  // one token a request, no prompts

  friend bool operator==(const StepLoad&, const StepLoad&) = default;
};

class StepPeaks {
 public:
  StepPeaks() = default;
  virtual ~StepPeaks() = default;
  StepPeaks(const StepPeaks&) = delete;
  StepPeaks& operator=(const StepPeaks&) = delete;
  StepPeaks(StepPeaks&&) = delete;
  StepPeaks& operator=(StepPeaks&&) = delete;

  // Bytes alive at the highest moment of such a step, outside of CUDA graphs' own pool. `before`:
  // the step before it, whose results may still stand; without tokens, there was none.
  [[nodiscard]] virtual StepSizes at(const StepLoad& load, const StepLoad& before) const = 0;
};

}  // namespace oomcast
