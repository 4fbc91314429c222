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

namespace {

// Queries and keys are rotated by one kernel where they were two (combo kernels), if that is
// faster: both ways are timed.
void rotate_made_up(OpGraph& graph, const Deployment& deployment,
                    const models::AttentionSpec& attention) {
  const Bytes element{models::bits_of(deployment.dtype) / 8};
  const models::RopeSpec& rope =
      deployment.model->ropes.at(static_cast<std::size_t>(attention.rope));
  const std::int64_t query = div_ceil(attention.heads, deployment.tp) * attention.head_dim;
  const std::int64_t key =
      std::max<std::int64_t>(1, div_ceil(attention.kv_heads, deployment.tp)) * attention.head_dim;
  const auto per_token = [&](const char* name, std::int64_t width) {
    return opgraph::TensorInfo{name, "T x width x b", Leaf::kRuntimeActivations,
                               Affine::per(ShapeVar::kTokens, element * width)};
  };
  const OpId run = graph.op("rotary kernels on made-up inputs", "compile");
  graph.make(run, per_token("made-up qkv", query + 2 * key));
  graph.make(run, {"made-up rope table", "rows x dim x b", Leaf::kRuntimeIntermediates,
                   Affine::fixed(element * (rope.table_rows * rope.rotary_dim))});
  graph.make(run, per_token("rotated q", query));
  graph.make(run, per_token("rotated k", key));
  graph.make(run, {"L2-sized timing buffer", "L2", Leaf::kWorkspaceGemm,
                   Affine::fixed(deployment.gpu.l2_bytes)});
}

void embed_made_up(OpGraph& graph, const Deployment& deployment) {
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
}

}  // namespace

OpGraph compile_graph(const Deployment& deployment, StageRole role) {
  OpGraph graph;
  if (deployment.enforce_eager || deployment.assumed.warm_compile_cache ||
      deployment.assumed.pieces_compiled_before || !role.first) {
    return graph;
  }
  const models::AttentionSpec& attention = deployment.model->layer(0).attention;
  const bool rotates =
      attention.rope >= 0 && !attention.qk_norm && attention.kind != models::AttentionKind::kMla;
  // As many keys as queries make one kernel at once; else both ways are timed before the piece is.
  const bool as_two = attention.heads != attention.kv_heads;
  if (rotates && as_two) {
    rotate_made_up(graph, deployment, attention);
  }
  if (!deployment.takes_embeddings()) {  // else the embedding is no part of what is compiled
    embed_made_up(graph, deployment);
  }
  if (rotates && !as_two) {
    rotate_made_up(graph, deployment, attention);
  }
  return graph;
}

}  // namespace oomcast::vllm
