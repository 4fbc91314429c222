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
// faster: each is timed alone, then both at once. Normed ones are made in halves that are joined
// without a copy: two tensors as large as the whole.
class MadeUpRotation {
 public:
  MadeUpRotation(OpGraph& graph, const Deployment& deployment,
                 const models::AttentionSpec& attention)
      : graph_(graph),
        deployment_(deployment),
        attention_(attention),
        query_(div_ceil(attention.heads, deployment.tp) * attention.head_dim),
        key_(std::max<std::int64_t>(1, div_ceil(attention.kv_heads, deployment.tp)) *
             attention.head_dim) {}

  void apart_and_together() {
    if (attention_.qk_norm) {
      run({}, false);  // their mean squares: a few bytes
    }
    run({key_}, true);
    run({query_}, true);
    together();
  }
  void together() { run({key_, query_}, true); }

 private:
  void run(const std::vector<std::int64_t>& outputs, bool rotates) {
    const OpId op = graph_.op("rotary kernels on made-up inputs", "compile");
    make(op, "made-up qkv", query_ + 2 * key_);
    if (rotates) {
      const models::RopeSpec& rope =
          deployment_.model->ropes.at(static_cast<std::size_t>(attention_.rope));
      graph_.make(op, {"made-up rope table", "rows x dim x b", Leaf::kRuntimeIntermediates,
                       Affine::fixed(element_ * (rope.table_rows * rope.rotary_dim))});
    }
    for (const std::int64_t width : outputs) {
      for (int i = 0; i < (attention_.qk_norm ? 2 : 1); ++i) {
        make(op, "rotated q or k", width);
      }
    }
    graph_.make(op, {"L2-sized timing buffer", "L2", Leaf::kWorkspaceGemm,
                     Affine::fixed(deployment_.gpu.l2_bytes)});
  }
  void make(OpId op, const char* name, std::int64_t width) {
    graph_.make(op, {name, "T x width x b", Leaf::kRuntimeActivations,
                     Affine::per(ShapeVar::kTokens, element_ * width)});
  }

  OpGraph& graph_;
  const Deployment& deployment_;
  const models::AttentionSpec& attention_;
  Bytes element_{models::bits_of(deployment_.dtype) / 8};
  std::int64_t query_;
  std::int64_t key_;
};

// Kernels of latent attention on made-up inputs: the latents' norm, the key's rotation, the
// queries', then all at once.
class MadeUpLatents {
 public:
  MadeUpLatents(OpGraph& graph, const Deployment& deployment,
                const models::AttentionSpec& attention)
      : graph_(graph), deployment_(deployment), attention_(attention) {}

  void apart_and_together() {
    run({joint(), latent()}, false);
    run({joint(), attention_.mla.rope_dim}, true);
    run({query(), query()}, true);
    run({joint(), query(), query(), joint(), latent()}, true);
  }

 private:
  [[nodiscard]] std::int64_t latent() const { return attention_.mla.kv_lora_rank; }
  [[nodiscard]] std::int64_t joint() const {
    return attention_.mla.q_lora_rank + latent() + attention_.mla.rope_dim;
  }
  [[nodiscard]] std::int64_t query() const {
    return div_ceil(attention_.heads, deployment_.tp) *
           (attention_.mla.nope_dim + attention_.mla.rope_dim);
  }
  void run(const std::vector<std::int64_t>& widths, bool rotates) {
    const OpId op = graph_.op("latents' kernels on made-up inputs", "compile");
    for (const std::int64_t width : widths) {
      graph_.make(op, {"made-up latents or queries", "T x width x b", Leaf::kRuntimeActivations,
                       Affine::per(ShapeVar::kTokens, element_ * width)});
    }
    if (rotates) {
      const models::RopeSpec& rope =
          deployment_.model->ropes.at(static_cast<std::size_t>(attention_.rope));
      graph_.make(op, {"made-up rope table", "rows x dim x b", Leaf::kRuntimeIntermediates,
                       Affine::fixed(element_ * (rope.table_rows * rope.rotary_dim))});
    }
    graph_.make(op, {"L2-sized timing buffer", "L2", Leaf::kWorkspaceGemm,
                     Affine::fixed(deployment_.gpu.l2_bytes)});
  }

  OpGraph& graph_;
  const Deployment& deployment_;
  const models::AttentionSpec& attention_;
  Bytes element_{models::bits_of(deployment_.dtype) / 8};
};

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
  const bool latents = attention.kind == models::AttentionKind::kMla;
  const bool rotates = attention.rope >= 0 && !latents;
  // As many keys as queries make one kernel at once; else both ways are timed before the piece is.
  const bool as_two = attention.heads != attention.kv_heads;
  // What was chosen for normed ones, which are sums, is found again with their timings.
  const bool chosen = attention.qk_norm && deployment.assumed.kernels_timed_before;
  if (rotates && as_two && !chosen) {
    MadeUpRotation(graph, deployment, attention).apart_and_together();
  }
  if (latents && attention.rope >= 0) {
    MadeUpLatents(graph, deployment, attention).apart_and_together();
  }
  if (!deployment.takes_embeddings()) {  // else the embedding is no part of what is compiled
    embed_made_up(graph, deployment);
  }
  if (rotates && !as_two) {
    MadeUpRotation(graph, deployment, attention).together();
  }
  return graph;
}

}  // namespace oomcast::vllm
