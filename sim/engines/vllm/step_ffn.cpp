// Dense MLPs and mixtures of experts.
#include "sim/engines/vllm/step_builder.hpp"

namespace oomcast::vllm {

using models::FfnKind;
using models::FfnSpec;
using models::LayerSpec;
using opgraph::Affine;
using opgraph::OpId;
using opgraph::TensorId;
using opgraph::TensorInfo;
using opgraph::Variable;

TensorId StepBuilder::ffn(const LayerSpec& layer, TensorId input) {
  const FfnSpec& spec = layer.ffn;
  if (spec.kind == FfnKind::kMoe) {
    return moe(spec, input);
  }
  return mlp(spec, local(spec.width), input, true);
}

TensorId StepBuilder::mlp(const FfnSpec& spec, std::int64_t width, TensorId input, bool reduces) {
  const bool gated = spec.kind == FfnKind::kGated || (spec.kind == FfnKind::kMoe && spec.gated);
  Variable up(graph_,
              linear(gated ? "gate_up_proj" : "up_proj", input, model_.hidden,
                     per_token(gated ? "gate_up" : "up", gated ? "T x 2I/tp x b" : "T x I/tp x b",
                               gated ? 2 * width : width, Leaf::kRuntimeIntermediates)));
  Variable activated(graph_, apply("activation", {*up},
                                   per_token("activation output", "T x I/tp x b", width,
                                             Leaf::kRuntimeIntermediates)));
  make_timing_buffer({*up, *activated});
  const bool part_of_experts = !reduces && style_.shared_inside_experts;
  if ((compiled() && !part_of_experts) || !style_.mlp_keeps_gate_up) {
    up.drop();
  }
  const TensorId partial =
      linear("down_proj", *activated, width, per_token("MLP output", "T x H x b", model_.hidden));
  if (compiled() && !part_of_experts) {
    activated.drop();
  }
  return reduces ? reduced("MLP output, reduced", partial) : partial;
}

void StepBuilder::make_timing_buffer(const std::vector<TensorId>& beside) {
  if (compiled()) {
    time_kernel(beside);
  }
}

void StepBuilder::time_norm(Norm norm, TensorId result) {
  bool& timed = norms_timed_.at(static_cast<std::size_t>(norm));
  if (!compiled() && style_.compiles_norms && !timed) {
    timed = true;
    time_kernel({result});
  }
}

void StepBuilder::time_kernel(const std::vector<TensorId>& beside) {
  if (!kind_.first_run || deployment_.assumed.warm_compile_cache ||
      deployment_.assumed.kernels_timed_before) {
    return;
  }
  const OpId id = op("timing of compiled kernels", beside);
  graph_.make(id, {"L2-sized timing buffer", "L2", Leaf::kWorkspaceGemm,
                   Affine::fixed(deployment_.gpu.l2_bytes)});
}

TensorId StepBuilder::moe(const FfnSpec& spec, TensorId input) {
  // Routers are not quantised.
  Variable logits(graph_, linear_as_it_is("gate", input,
                                          per_token("router logits", "T x E x b", spec.experts,
                                                    Leaf::kRuntimeIntermediates)));
  Variable shared(graph_);
  if (spec.shared_width > 0) {
    const bool whole = deployment_.exchanges_tokens();
    shared = mlp(spec, whole ? spec.shared_width : local(spec.shared_width), input, false);
  }
  Variable weights(graph_);
  Variable ids(graph_);
  {
    const OpId topk = op("top-k experts", {*logits});
    const Bytes pairs = Bytes{4} * spec.experts_per_token;
    weights = graph_.make(
        topk, per_token_bytes("top-k weights", "T x k x 4", pairs, Leaf::kRuntimeIntermediates));
    ids = graph_.make(
        topk, per_token_bytes("top-k ids", "T x k x 4", pairs, Leaf::kRuntimeIntermediates));
  }
  const TensorId routed = experts(spec, {input, *weights, *ids});
  TensorId out = routed;
  if (!shared.empty()) {
    const OpId add = op("add shared experts", {routed, *shared});
    out = graph_.view(add, routed, "experts' output");
  }
  return reduced("experts' output, reduced", out);
}

// Tokens of other replicas that came for this rank's experts; without any, the rank's own.
std::vector<TensorId> StepBuilder::dispatched(const std::vector<TensorId>& reads) {
  if (deployment_.exchange.kind == Exchange::kNone) {
    return reads;
  }
  const OpId id = op("dispatch", reads);
  std::vector<TensorId> arrived;
  for (TensorInfo& tensor : deployment_.exchange.dispatched(element_)) {
    arrived.push_back(graph_.make(id, std::move(tensor)));
  }
  return arrived;
}

void StepBuilder::make_expert_workspace(OpId id, const FfnSpec& spec) {
  const Bytes own = expert_workspace(deployment_, spec, deployment_.max_num_batched_tokens);
  const auto info = [](Bytes bytes) {
    return TensorInfo{"expert workspaces", "of max_num_batched_tokens, by kernel",
                      Leaf::kWorkspaceMoe, Affine::fixed(bytes)};
  };
  if (!keeps_expert_workspace(deployment_)) {
    // As large as this batch asks, but for one that runs in chunks.
    const std::int64_t most = deployment_.max_num_batched_tokens.count();
    const auto chunk = kernels::vllm_expert_chunk(deployment_.launch.version);
    const bool whole = deployment_.exchange.kind == Exchange::kNone && (!chunk || *chunk >= most);
    graph_.make(id, whole ? per_token_bytes("expert workspaces", "of the batch, by kernel",
                                            Bytes{own.count() / most}, Leaf::kWorkspaceMoe)
                          : info(own));
    return;
  }
  const Bytes bytes = std::max(own, sparse_workspace(deployment_));
  grow_workspace(id, bytes, info(bytes));
}

void StepBuilder::grow_workspace(OpId id, Bytes bytes, TensorInfo info) {
  if (!kind_.first_run || bytes <= made_workspace_) {
    return;
  }
  made_workspace_ = bytes;
  info.kept = true;
  graph_.make(id, std::move(info));
}

// Rows of each expert are padded to tiles of up to 128; both products keep theirs while the call
// lasts (flashinfer 0.6.13, trtllm_fused_moe_kernel_launcher.cu, getMaxPermutedPaddedCount).
TensorId StepBuilder::trtllm_experts(OpId id, const FfnSpec& spec) {
  constexpr std::int64_t kTilePadding = 127;
  constexpr std::int64_t kFp4Group = 16;
  constexpr std::int64_t kFp8Group = 128;
  constexpr std::int64_t kScaleBytes = 4;
  const std::int64_t width = local_expert_width(deployment_, spec);
  const std::int64_t hidden = spec.expert_input(model_.hidden);
  const auto& quantization = model_.quantization;
  const bool by_blocks = quantization && quantization->method != "mxfp4";
  Bytes first = element_ * width;
  if (by_blocks && quantization->weight_bits == 4) {
    first = Bytes{width / 2 + width / kFp4Group};
  } else if (by_blocks) {  // gate and up, then their product, with scales
    first = Bytes{3 * width + div_ceil(3 * width, kFp8Group) * kScaleBytes};
  } else if (!quantization) {
    first = element_ * 2 * width;
  }
  const Bytes row = first + element_ * hidden;
  if (by_blocks) {
    graph_.make(id, per_token_bytes("quantised input", "T x H x w",
                                    Bytes{hidden * quantization->weight_bits / 8},
                                    Leaf::kRuntimeIntermediates));
  }
  graph_.make(id, per_token_bytes("products of both matrices", "T x k x (I + H)",
                                  row * spec.experts_per_token, Leaf::kWorkspaceMoe));
  graph_.make(id, {"padding of both products", "E x 127 x (I + H)", Leaf::kWorkspaceMoe,
                   Affine::fixed(row * detail::checked_mul(spec.experts, kTilePadding))});
  return graph_.make(id, per_token("experts' output", "T x H x b", model_.hidden));
}

TensorId StepBuilder::experts(const FfnSpec& spec, const std::vector<TensorId>& chosen) {
  const std::vector<TensorId> reads = dispatched(chosen);
  const OpId id = op("fused experts", reads);
  const ExpertExchange& exchange = deployment_.exchange;
  if (exchange.kind == Exchange::kNone &&
      expert_kernel(deployment_) == kernels::ExpertKernel::kGptOssTriton) {
    // One call from router to sum (triton_kernel_moe_forward): nothing outlives it.
    const std::int64_t width = align_up(local_expert_width(deployment_, spec),
                                        deployment_.shard(0).fp4_experts.width_multiple);
    const TensorId out = graph_.make(id, per_token("experts' output", "T x H x b", model_.hidden));
    graph_.make(id, per_token("activated experts", "T x k x I x b", spec.experts_per_token * width,
                              Leaf::kRuntimeIntermediates));
    graph_.make(id, per_token("experts' outputs before their sum", "T x k x H x b",
                              spec.experts_per_token * model_.hidden, Leaf::kRuntimeIntermediates));
    return out;
  }
  if (runs_trtllm_experts(deployment_)) {
    return trtllm_experts(id, spec);
  }
  make_expert_workspace(id, spec);
  if (exchange.kind == Exchange::kNone &&
      expert_kernel(deployment_) == kernels::ExpertKernel::kFlashInferCutlass) {
    // As kernels::cutlass_experts() has them, without scales and offsets.
    const std::int64_t width = local_expert_width(deployment_, spec);
    graph_.make(id, per_token("permuted input", "T x k x H x b",
                              spec.experts_per_token * model_.hidden, Leaf::kWorkspaceMoe));
    graph_.make(id, per_token("first product", "T x k x max(2I, H) x b",
                              spec.experts_per_token * std::max(2 * width, model_.hidden),
                              Leaf::kWorkspaceMoe));
  }
  const bool arrives_quantised =
      exchange.kind == Exchange::kBatched ||
      (exchange.kind == Exchange::kSparse && exchange.payload != comm::Payload::kBf16);
  const auto hidden = static_cast<double>(model_.hidden);
  if (quantises_activations(deployment_) && !arrives_quantised) {
    graph_.make(id, exchange.per_arriving("quantised input", "T x H", hidden));
  }
  if (exchange.kind == Exchange::kBatched) {
    return apply("combine", reads, per_token("experts' output", "T x H x b", model_.hidden));
  }
  graph_.make(id, exchange.per_arriving("tokens sorted by expert", "T x k x 8",
                                        static_cast<double>(spec.experts_per_token) * 8));
  if (exchange.kind == Exchange::kNone) {
    return graph_.make(id, per_token("experts' output", "T x H x b", model_.hidden));
  }
  const TensorId out =
      graph_.make(id, exchange.per_arriving("output of arrived tokens", "arrived x H x b",
                                            hidden * static_cast<double>(element_.count())));
  return apply("combine", {out}, per_token("experts' output", "T x H x b", model_.hidden));
}

}  // namespace oomcast::vllm
