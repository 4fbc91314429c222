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
  // `pool`: slots of the KV pool.
  StepPeaks(const Deployment& deployment, int stage, Tokens pool);

  // Replayed graphs keep their activations and logits in memory of their own. Outside of it are
  // what attention makes between the pieces of a captured prefill, and the sampler's probabilities.
  // Logits of an eager step stand until the next one has made its own.
  [[nodiscard]] StepSizes at(const StepLoad& load, const StepLoad& before) const override;

 private:
  struct Moment {
    opgraph::Affine live;
    std::array<opgraph::Affine, kStepLeaves.size()> by_leaf;
  };
  using Envelope = std::vector<Moment>;

  [[nodiscard]] StepSizes forward(const StepLoad& load) const;
  [[nodiscard]] const Envelope& eager(const StepLoad& load) const;
  [[nodiscard]] bool replays(const StepLoad& load) const;
  // Its logits go to the buffer of captured decodes.
  [[nodiscard]] bool has_logits_buffer(const StepLoad& load) const {
    return load.rows <= captured_rows_ && replays(load);
  }

  const Deployment& deployment_;
  int stage_;
  Tokens pool_;
  std::int64_t captured_rows_ = 0;    // requests of the largest captured decode
  std::int64_t captured_tokens_ = 0;  // tokens of the largest captured prefill
  Bytes attention_output_;            // a token, of the widest layer
  Bytes attention_statistics_;
  Bytes converted_latents_;
  Bytes attention_partials_;  // of Triton's decodes, a row
  Bytes logits_row_;          // in fp32
  Bytes gathered_row_;        // with tensor parallelism
  // Programs of eager steps, made when a kind of step first runs.
  mutable std::vector<std::pair<StepKind, Envelope>> eager_;
};

}  // namespace oomcast::sglang
