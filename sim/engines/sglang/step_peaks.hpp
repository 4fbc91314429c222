// The memory of SGLang's serving steps by class: forward pass and logits (facts: SGLang 10, SGLang
// startup 5, 10; checked against recorded steps).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sim/engines/sglang/step_program.hpp"
#include "sim/engines/step_peaks.hpp"

namespace oomcast::sglang {

class StepPeaks final : public oomcast::StepPeaks {
 public:
  StepPeaks(const Deployment& deployment, int stage);

  // Replayed graphs keep their activations in the private pool. Outside of it are what attention
  // makes between the pieces of a captured prefill, and the sampler's probabilities.
  [[nodiscard]] StepSizes at(const StepLoad& load) const override;

 private:
  struct Moment {
    opgraph::Affine live;
    std::array<opgraph::Affine, kStepLeaves.size()> by_leaf;
  };
  using Envelope = std::vector<Moment>;

  [[nodiscard]] StepSizes forward(const StepLoad& load) const;
  [[nodiscard]] Bytes logits(const StepLoad& load) const;
  [[nodiscard]] const Envelope& eager(const StepLoad& load) const;
  [[nodiscard]] bool replays(const StepLoad& load) const;
  // Fits into the buffer of captured decodes.
  [[nodiscard]] bool has_logits_buffer(std::int64_t rows) const { return rows <= captured_rows_; }

  const Deployment& deployment_;
  int stage_;
  std::int64_t captured_rows_ = 0;    // requests of the largest captured decode
  std::int64_t captured_tokens_ = 0;  // tokens of the largest captured prefill
  Bytes attention_output_;            // a token, of the widest layer
  Bytes attention_statistics_;
  Bytes logits_row_;         // in fp32, all ranks' parts
  Bytes logits_row_eager_;   // at the sampler's highest moment
  Bytes logits_row_before_;  // of the batch before, under overlap
  Bytes logits_row_replayed_;
  // Programs of eager steps, made when a kind of step first runs.
  mutable std::vector<std::pair<StepKind, Envelope>> eager_;
};

}  // namespace oomcast::sglang
