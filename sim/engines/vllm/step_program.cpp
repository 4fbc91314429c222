#include "sim/engines/vllm/step_program.hpp"

#include "sim/core/error.hpp"
#include "sim/engines/vllm/step_builder.hpp"

namespace oomcast::vllm {

using opgraph::Affine;
using opgraph::OpGraph;
using opgraph::OpId;
using opgraph::ShapeVar;

StageRole role_of(const Deployment& deployment, int stage) {
  return {stage == 0, stage == deployment.pp - 1};
}

StepKind profile_kind(const Deployment& deployment, StageRole role) {
  return {.execution = deployment.enforce_eager ? Execution::kEager : Execution::kCompiled,
          .sampling = role.last ? Sampling::kProfile : Sampling::kNone,
          .attention = AttentionRun::kSkipped,
          .first_run = true,
          .first_on_stream = !deployment.rules.cublas_before_snapshot};
}

OpGraph step_graph(const Deployment& deployment, int stage, StepKind kind) {
  return StepBuilder(deployment, stage, kind).build();
}

OpGraph compile_graph(const Deployment& deployment, StageRole role) {
  OpGraph graph;
  if (deployment.enforce_eager || deployment.assumed.warm_compile_cache ||
      deployment.assumed.pieces_compiled_before || !role.first) {
    return graph;
  }
  const Bytes element{models::bits_of(deployment.dtype) / 8};
  const std::int64_t hidden = deployment.model->hidden;
  const std::int64_t rows =
      align_up(deployment.model->vocabulary, kVocabularyPadding) / deployment.tp;
  const OpId run = graph.op("embedding piece on made-up inputs", "compile");
  graph.make(run, {"made-up embedding weights", "V/tp x H x b", Leaf::kRuntimeIntermediates,
                   Affine::fixed(element * detail::checked_mul(rows, hidden))});
  for (int i = 0; i < 2; ++i) {
    graph.make(run, {"made-up activations", "T x H x b", Leaf::kRuntimeActivations,
                     Affine::per(ShapeVar::kTokens, element * hidden)});
  }
  return graph;
}

}  // namespace oomcast::vllm
