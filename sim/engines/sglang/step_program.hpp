// The ops of one forward pass of SGLang and the tensors they make, as an op graph: what graphs
// capture and eager steps allocate. Tensors live as long as a name of SGLang's Python holds them;
// attention runs between the pieces of a breakable prefill graph. Checked against the recorded
// growth of graph pools (facts: SGLang startup 3-5).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/engines/sglang/deployment.hpp"
#include "sim/opgraph/program.hpp"

namespace oomcast::sglang {

struct StepKind {
  bool decode = false;           // one token a request, logits at the end
  bool first_on_stream = false;  // cuBLAS makes its workspace for this stream
  // Sums over ranks allocate their result; large ones work in place.
  bool sums_allocate = false;
  bool keeps_logits = false;  // a graph of a release without a buffer for all of them
  bool captured = false;      // for a graph; MLA prefills then run in the latent space as well
  // Decodes that a graph is captured for, where the attention kernel's splits depend on them, and
  // tokens of each.
  std::int64_t batch = 1;
  std::int64_t tokens_each = 1;
  // Forward passes of the draft instead of the model's; 0: the model's.
  std::int64_t draft_passes = 0;
  // Hidden states that a graph leaves for the draft: of every so many tokens one; 0: none.
  std::int64_t keeps_hidden_of = 0;
  // Rows that a tuned expert kernel pads each expert's part to; 0: none.
  std::int64_t expert_padding = 0;
  // Cells of the KV pool, for kernels that convert all of a layer's before they read some.
  Tokens pool = {};

  friend bool operator==(const StepKind&, const StepKind&) = default;
};

// Sums up to here go through the custom all-reduce, which allocates.
inline constexpr Bytes kCustomSum{std::int64_t{16} << 20};

// A layer's latents in the queries' dtype: FlashAttention 3 and FlashInfer copy the whole pool
// before every call when it is kept in 8 bits (flashattention_backend.py,
// flashinfer_mla_backend.py: get_key_buffer().to(q.dtype)). 0: they read it as it is.
Bytes converted_latents(const Deployment& deployment, const std::string& backend,
                        const models::AttentionSpec& attention, Tokens pool);

// How a step of so many tokens runs.
StepKind step_kind(const Deployment& deployment, bool decode, std::int64_t tokens);

struct StepProgram {
  opgraph::Program program;
  // Of each op: whether it runs beside the others, where blocks freed by them are not for it.
  std::vector<bool> on_second_stream;
};

StepProgram step_program(const Deployment& deployment, int stage, StepKind kind);

}  // namespace oomcast::sglang
