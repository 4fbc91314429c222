// The ops of one vLLM step and the tensors they make, as an op graph: forward pass of one pipeline
// stage, then sampler.
//
// Eager execution follows the variables of vLLM's Python (a tensor lives as long as a name holds
// it); compiled pieces free at the last read, but the inputs of a piece live until it returns;
// inside a CUDA graph only what attention asks for outside the graph is made. Sources: facts pages
// vLLM 3.2-3.4 and vLLM startup; checked against recorded startups and steps.
#pragma once

#include "sim/engines/vllm/deployment.hpp"
#include "sim/opgraph/program.hpp"

namespace oomcast::vllm {

// The stage's place in the pipeline decides what it holds.
struct StageRole {
  bool first = true;
  bool last = true;
};

enum class Execution : std::uint8_t {
  kEager,
  kCompiled,        // torch.compile's pieces, no graph of this size
  kPiecewiseGraph,  // pieces replayed as graphs, attention between them
  kFullGraph,
};
inline constexpr std::size_t kExecutions = 4;
constexpr bool runs_in_graph(Execution execution) {
  return execution == Execution::kPiecewiseGraph || execution == Execution::kFullGraph;
}
constexpr std::size_t index_of(Execution execution) { return static_cast<std::size_t>(execution); }

enum class Sampling : std::uint8_t {
  kNone,     // no logits: a stage before the last
  kGreedy,   // argmax
  kRandom,   // temperature, top-k, top-p
  kProfile,  // what the profile run and the sampler's warm-up of this version do
};

// What the attention ops do.
enum class AttentionRun : std::uint8_t {
  kSkipped,  // no metadata: a dummy run
  kRuns,
  kSplits,  // with a fixed number of key splits, as full graphs need it
  kWhole,   // the same of more sequences than the kernel splits keys for
};

struct StepKind {
  Execution execution = Execution::kEager;
  Sampling sampling = Sampling::kNone;
  AttentionRun attention = AttentionRun::kRuns;
  // Workspaces that stay are made now; kernels compiled a moment ago are timed.
  bool first_run = false;
  // cuBLAS makes its workspace for this stream.
  bool first_on_stream = false;
  // Graphs' results are copied out: the buffer for it is made now.
  bool first_capture = false;
};

// A run of more alike layers than this repeats what the layers before did to memory: each takes the
// places that the second before it had, so that programs leave out pairs.
inline constexpr int kMostAlikeLayers = 6;
constexpr int layers_that_tell(int alike) {
  return alike <= kMostAlikeLayers ? alike : kMostAlikeLayers + (alike - kMostAlikeLayers) % 2;
}

opgraph::OpGraph step_graph(const Deployment& deployment, int stage, StepKind kind);

// How the profile run passes over the stage.
StepKind profile_kind(const Deployment& deployment, StageRole role);

// Peaks of compiling with a cold cache, on the first stage: the embedding piece is run once on
// made-up weights and inputs. Empty otherwise.
opgraph::OpGraph compile_graph(const Deployment& deployment, StageRole role);

StageRole role_of(const Deployment& deployment, int stage);

}  // namespace oomcast::vllm
