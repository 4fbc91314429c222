// What a forward pass and the sampler hold in PyTorch at their highest point, tensor by tensor.
//
// T tokens, R rows with logits, H hidden size, I MLP width, V vocabulary (un-padded), b bytes of an
// element, u = R x V x 4 B (one fp32 matrix of logits). Formulas: facts pages vLLM 3.2-3.4 and
// vLLM startup; checked against recorded startups (tests/unit/vllm).
#pragma once

#include <string>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/ledger/classes.hpp"

namespace oomcast::vllm {

struct LiveTensor {
  std::string name;
  std::string formula;  // "T x 2I/tp x b"
  Leaf leaf = Leaf::kRuntimeActivations;
  Bytes bytes;
};

// Tensors alive together at one moment.
struct LiveSet {
  std::string moment;  // "forward", "sampler", "embedding autotune"
  std::vector<LiveTensor> tensors;
  [[nodiscard]] Bytes bytes() const;
};

// The stage's place in the pipeline decides what it holds.
struct StageRole {
  bool first = true;
  bool last = true;
};

// The forward pass over `tokens` tokens at its widest point (the MLP, or the expert workspace).
LiveSet forward_live_set(const Deployment& deployment, StageRole role, Tokens tokens);

// The sampler on `rows` rows after a forward pass over `tokens` tokens; empty on stages before the
// last. `units` in u; use the profile's or the serving step's.
LiveSet sampler_live_set(const Deployment& deployment, StageRole role, Tokens tokens,
                         std::int64_t rows, double units);

// Peaks of the profile run that come from compiling: the embedding piece is run once on made-up
// inputs (cold compile cache, compiled execution, first stage).
LiveSet compile_live_set(const Deployment& deployment, StageRole role, Tokens tokens);

// Sampler peak in u of the profile run, for this version, runner and dtype.
double profile_sampler_units(const Deployment& deployment);
// Of a serving step that samples at random: the same tensors, whatever the profile covered.
double serving_sampler_units(const Deployment& deployment);

// PyTorch's cuBLAS workspace of one handle and stream: 32 MiB from compute capability 9, 8.1
// before.
Bytes cublas_workspace(const models::GpuSpec& gpu);

// The Triton top-k/top-p sampler's buffer, kept once made: min(pow2ceil(min(SM, R)), SM) x V x 4 B.
Bytes sampler_buffer(const Deployment& deployment, std::int64_t rows);

// Buffers the model runner keeps from its construction on.
std::vector<LiveTensor> runner_buffers(const Deployment& deployment, StageRole role);

// Block tables and slot mappings of all KV groups. The first runner makes them at its construction,
// the second with the KV cache, after the budget is fixed.
std::vector<LiveTensor> block_tables(const Deployment& deployment, const KvLayout& layout);

}  // namespace oomcast::vllm
