// Attention of one layer: projections, output, what the kernel asks for.
#include "sim/engines/vllm/step_builder.hpp"

namespace oomcast::vllm {

using models::AttentionKind;
using models::AttentionSpec;
using models::LayerSpec;
using opgraph::Affine;
using opgraph::OpId;
using opgraph::TensorId;
using opgraph::TensorInfo;
using opgraph::Variable;

TensorId StepBuilder::attention(const LayerSpec& layer, TensorId input) {
  if (has_state(layer.attention.kind)) {
    return recurrent(layer.attention, input);
  }
  return layer.attention.kind == AttentionKind::kMla ? mla(layer.attention, input)
                                                     : qkv_attention(layer, input);
}

TensorId StepBuilder::qkv_attention(const LayerSpec& layer, TensorId input) {
  const AttentionSpec& attention = layer.attention;
  const std::int64_t query = local(attention.heads) * attention.head_dim;
  const std::int64_t key = local_kv_heads(attention) * attention.head_dim;
  const bool gated = attention.query_gate;
  Variable qkv(graph_,
               linear("qkv_proj", input, model_.hidden,
                      per_token("qkv", gated ? "T x (2 q + 2 kv) x b" : "T x (q + 2 kv) x b",
                                (gated ? 2 : 1) * query + 2 * key)));
  Variable q(graph_);
  Variable k(graph_);
  Variable gate(graph_);
  const TensorInfo gate_info = per_token("gate", "T x q x b", query);
  const bool fused = gated && style_.fuses_query_gate;
  if (fused) {
    const OpId norms = op("q_norm, k_norm and gate", {*qkv});
    q = graph_.make(norms, per_token("normed q", "T x q x b", query));
    k = graph_.make(norms, per_token("normed k", "T x kv x b", key));
    gate = graph_.make(norms, gate_info);
  } else {
    q = graph_.view(op("split", {*qkv}), *qkv, "q");
    if (gated) {
      // Queries and gates alternate by head: both are copied out.
      q = apply("q", {*qkv}, per_token("q", "T x q x b", query));
      gate = apply("gate", {*qkv}, gate_info);
    }
    if (attention.qk_norm) {
      q = apply("q_norm", {*q}, per_token("normed q", "T x q x b", query));
      time_norm(Norm::kQueries, *q);
      k = apply("k_norm", {*qkv}, per_token("normed k", "T x kv x b", key));
      time_norm(Norm::kKeys, *k);
    }
  }
  rotate(attention, *qkv, q, k);
  Variable out(graph_, attend(attention, {*q, *qkv}, query));
  if (gated) {
    Variable open(graph_, apply("sigmoid", {*gate}, gate_info));
    if (!fused) {
      gate = *open;
    }
    out = apply("attention output x gate", {*out, *open},
                per_token("gated output", "T x q x b", query));
  }
  const TensorId partial =
      linear("o_proj", *out, query, per_token("attention projection", "T x H x b", model_.hidden));
  return reduced("attention projection, reduced", partial);
}

// Ropes that vLLM does not write into their arguments by one kernel.
void StepBuilder::rotate(const AttentionSpec& attention, TensorId qkv, Variable& q, Variable& k) {
  if (attention.rope < 0) {
    return;
  }
  const models::RopeSpec& rope = model_.ropes.at(static_cast<std::size_t>(attention.rope));
  if (rope.type == "longrope") {
    rotate_by_parts(attention, rope, qkv, q, k);
  } else if (rope.multimodal) {
    rotate_by_sections(attention, rope, qkv, q, k);
  }
}

// Long ropes are written in PyTorch's operators: queries x cos, half of them negated, both halves
// exchanged, x sin, the sum, and that beside what is not rotated; the same for keys
// (rotary_embedding/phi3_long_rope_scaled_rope.py).
void StepBuilder::rotate_by_parts(const AttentionSpec& attention, const models::RopeSpec& rope,
                                  TensorId qkv, Variable& q, Variable& k) {
  std::vector<TensorId> named;  // to the end
  const OpId rows = op("cos and sin", {qkv});
  for (const char* name : {"cos and sin", "cos twice", "sin twice"}) {
    named.push_back(graph_.make(
        rows, per_token(name, "T x rope x b", rope.rotary_dim, Leaf::kRuntimeIntermediates)));
  }
  const auto part = [&](const char* name, std::int64_t elements) {
    return per_token(name, "T x heads x rope x b", elements, Leaf::kRuntimeIntermediates);
  };
  const auto rotate = [&](std::int64_t heads, Variable& states) {
    const std::int64_t width = heads * rope.rotary_dim;
    Variable by_cos(graph_, apply("states x cos", {qkv}, part("states x cos", width)));
    Variable exchanged(graph_);
    {
      Variable negated(graph_, apply("-half", {qkv}, part("negated half", width / 2)));
      exchanged = apply("halves exchanged", {*negated}, part("halves exchanged", width));
    }
    Variable by_sin(graph_, apply("halves x sin", {*exchanged}, part("halves x sin", width)));
    exchanged.drop();
    named.push_back(apply("rotated part", {*by_cos, *by_sin}, part("rotated part", width)));
    by_cos.drop();
    by_sin.drop();
    states = apply("rotated states", {named.back()},
                   per_token("rotated states", "T x heads x dim x b", heads * attention.head_dim));
  };
  rotate(local(attention.heads), q);
  rotate(local_kv_heads(attention), k);
  for (const TensorId tensor : named) {
    graph_.hold_to_here(tensor);
  }
}

// Each token has three positions, whose rows are looked up, split and copied; the kernel wanted
// dense queries and keys once (rotary_embedding/mrope.py).
void StepBuilder::rotate_by_sections(const AttentionSpec& attention, const models::RopeSpec& rope,
                                     TensorId qkv, Variable& q, Variable& k) {
  constexpr std::int64_t kPositions = 3;
  const auto rows = [&](const char* name, std::int64_t width) {
    return per_token(name, "3 x T x rope x b", kPositions * width, Leaf::kRuntimeIntermediates);
  };
  Variable both(graph_, apply("cos and sin", {qkv}, rows("cos and sin", rope.rotary_dim)));
  if (style_.rotates_dense_rows && !attention.qk_norm && !attention.query_gate) {
    q = apply("dense q", {qkv},
              per_token("dense q", "T x q x b", local(attention.heads) * attention.head_dim));
    k = apply("dense k", {qkv},
              per_token("dense k", "T x kv x b", local_kv_heads(attention) * attention.head_dim));
  }
  Variable cos(graph_, apply("dense cos", {*both}, rows("dense cos", rope.rotary_dim / 2)));
  Variable sin(graph_, apply("dense sin", {*both}, rows("dense sin", rope.rotary_dim / 2)));
}

TensorId StepBuilder::recurrent(const AttentionSpec& attention, TensorId input) {
  const models::StateSpec& state = attention.state;
  const std::int64_t values = local(state.heads * state.head_rows);
  // What the convolution sees, a gate or a state-space input as wide as the output, and what the
  // decay is made of.
  const std::int64_t mixed = local(state.inner + state.groups * state.group_size);
  Variable projected(
      graph_, linear("in_proj", input, model_.hidden,
                     per_token("projected states", "T x (conv + values) x b", mixed + values)));
  Variable decay(graph_, linear("in_proj of decays", input, model_.hidden,
                                per_token("decays", "T x 2 heads x b", 2 * local(state.heads))));
  const bool delta_net = attention.kind == AttentionKind::kGatedDeltaNet;
  std::vector<TensorId> copies;  // named to the layer's end
  if (delta_net && style_.interleaves_states) {
    const OpId split = op("split states", {*projected});
    const std::int64_t keys = (mixed - values) / 2;
    for (const std::int64_t width : {values, values, keys, keys, mixed}) {
      copies.push_back(graph_.make(split, per_token("states in order", "T x width x b", width)));
    }
  }
  Variable out(graph_, apply("recurrent output", {*projected, *decay},
                             per_token("recurrent output", "T x values x b", values)));
  Variable argument(graph_);
  Variable gate_copy(graph_);
  if (delta_net) {
    if (kind_.first_run) {
      warm_up_delta_net(state, *projected);
    }
    if (style_.keeps_recurrent_output) {
      argument = *out;
    }
    if (!style_.interleaves_states) {
      gate_copy = apply("gate", {*projected}, per_token("gate", "T x values x b", values));
    }
  }
  if (attention.kind == AttentionKind::kMamba2 && state.groups > 1 && !compiled()) {
    // The fused norm knows one group only; else PyTorch's operators work in fp32 (mamba_mixer2.py).
    const OpId gate = op("norm of groups with gate", {input, *out, *projected});
    for (const char* name : {"gated output in fp32", "normed groups in fp32"}) {
      graph_.make(gate, per_token_bytes(name, "T x values x 4", Bytes{4} * values,
                                        Leaf::kRuntimeIntermediates));
    }
  }
  out = apply("norm with gate", {*out, *projected},
              per_token("normed output", "T x values x b", values));
  if (!style_.keeps_gate_copy) {
    gate_copy.drop();
  }
  const TensorId partial = linear("out_proj", *out, values,
                                  per_token("recurrent projection", "T x H x b", model_.hidden));
  for (const TensorId copy : copies) {
    graph_.hold_to_here(copy);
  }
  return reduced("recurrent projection, reduced", partial);
}

// Each layer of a profile run tries its kernels on one chunk and empties the cache.
void StepBuilder::warm_up_delta_net(const models::StateSpec& state, TensorId projected) {
  const OpId warm_up = op("warm-up of delta net kernels", {projected});
  if (!delta_net_ran_ && deployment_.flashinfer_delta_net()) {
    delta_net_ran_ = true;
    for (opgraph::TensorInfo& buffer : delta_net_buffers(deployment_, state)) {
      graph_.make(warm_up, std::move(buffer));
    }
  }
  if (deployment_.rules.delta_net_warm_up) {
    graph_.set_empties_cache(warm_up);
  }
}

TensorId StepBuilder::attend(const AttentionSpec& attention, const std::vector<TensorId>& reads,
                             std::int64_t width) {
  const TensorId out =
      apply("attention output", reads, per_token("attention output", "T x q x b", width));
  if (kind_.attention != AttentionRun::kSkipped) {
    const OpId kernel = kernel_op("attention", {out});
    graph_.make(kernel,
                per_token_bytes("softmax statistics", "T x heads x 4",
                                Bytes{4} * local(attention.heads), Leaf::kWorkspaceAttention));
    make_split_buffers(kernel, attention);
  }
  return out;
}

void StepBuilder::make_split_buffers(OpId kernel, const AttentionSpec& attention) {
  if (kind_.attention != AttentionRun::kSplits || !splits_keys(deployment_)) {
    return;
  }
  const std::int64_t dim =
      attention.kind == AttentionKind::kMla ? attention.mla.kv_lora_rank : attention.head_dim;
  graph_.make(kernel, per_token_bytes("split-KV partial outputs", "32 x T x q x 4",
                                      Bytes{4} * (kAttentionSplits * local(attention.heads) * dim),
                                      Leaf::kWorkspaceAttention));
  graph_.make(kernel, per_token_bytes("split-KV statistics", "32 x T x heads x 4",
                                      Bytes{4} * (kAttentionSplits * local(attention.heads)),
                                      Leaf::kWorkspaceAttention));
}

void StepBuilder::attention_beside_graphs(const AttentionSpec& attention) {
  if (attention.kind == AttentionKind::kCompressed) {
    compressed_kernel(attention, {});
    return;
  }
  if (has_state(attention.kind)) {
    return;
  }
  const OpId kernel = kernel_op("attention", {});
  graph_.make(kernel,
              per_token_bytes("softmax statistics", "T x heads x 4",
                              Bytes{4} * local(attention.heads), Leaf::kWorkspaceAttention));
  make_split_buffers(kernel, attention);
}

TensorId StepBuilder::mla(const AttentionSpec& attention, TensorId input) {
  const models::MlaSpec& sizes = attention.mla;
  const std::int64_t heads = local(attention.heads);
  const std::int64_t query = heads * (sizes.nope_dim + sizes.rope_dim);
  Variable q(graph_);
  Variable latent(graph_);
  Variable normed_q(graph_);
  if (sizes.q_lora_rank > 0) {
    latent = linear("fused_qkv_a_proj", input, model_.hidden,
                    per_token("q and kv latents", "T x (q_rank + kv_rank + rope) x b",
                              sizes.q_lora_rank + sizes.kv_lora_rank + sizes.rope_dim));
    normed_q = apply("q_a_layernorm", {*latent},
                     per_token("normed q latent", "T x q_rank x b", sizes.q_lora_rank));
    q = linear("q_b_proj", *normed_q, sizes.q_lora_rank,
               per_token("q", "T x heads x (nope + rope) x b", query));
    if (sizes.indexer_heads == 0) {
      normed_q.drop();  // an indexer makes its queries of it as well
    }
  } else {
    latent = linear(
        "kv_a_proj", input, model_.hidden,
        per_token("kv latent", "T x (kv_rank + rope) x b", sizes.kv_lora_rank + sizes.rope_dim));
    q = linear("q_proj", input, model_.hidden,
               per_token("q", "T x heads x (nope + rope) x b", query));
  }
  Variable normed(graph_,
                  apply("kv_a_layernorm", {*latent},
                        per_token("normed kv latent", "T x kv_rank x b", sizes.kv_lora_rank)));
  Variable rope(graph_, apply("rotary embedding", {*latent},
                              per_token("k rope", "T x rope x b", sizes.rope_dim)));
  Variable out(graph_,
               apply("attention output", {*q, *normed, *rope},
                     per_token("attention output", "T x heads x v x b", heads * sizes.v_dim)));
  mla_kernel(attention, *out);
  const TensorId partial = linear("o_proj", *out, heads * sizes.v_dim,
                                  per_token("attention projection", "T x H x b", model_.hidden));
  return reduced("attention projection, reduced", partial);
}

void StepBuilder::mla_kernel(const AttentionSpec& attention, TensorId out) {
  const models::MlaSpec& sizes = attention.mla;
  const std::int64_t heads = local(attention.heads);
  const std::int64_t up = heads * (sizes.nope_dim + sizes.v_dim);
  const bool decodes =
      kind_.attention == AttentionRun::kSplits || kind_.attention == AttentionRun::kWhole;
  if (decodes && splits_keys(deployment_)) {
    // Decodes: queries absorbed into the latent space, one latent output a head.
    const OpId absorb = kernel_op("absorb q", {out});
    Variable absorbed(graph_, graph_.make(absorb, per_token("absorbed q", "T x heads x kv_rank x b",
                                                            heads * sizes.kv_lora_rank,
                                                            Leaf::kRuntimeIntermediates)));
    const OpId kernel = kernel_op("attention", {out, *absorbed});
    graph_.make(kernel, per_token("latent output", "T x heads x kv_rank x b",
                                  heads * sizes.kv_lora_rank, Leaf::kRuntimeIntermediates));
    make_split_buffers(kernel, attention);
    return;
  }
  if (kind_.attention == AttentionRun::kSkipped && sizes.indexer_heads > 0) {
    if (deployment_.rules.sparse_attention_is_absorbed) {
      profiled_sparse_attention(attention, out);
      return;
    }
    profiled_indexer(kernel_op("indexer, profiled", {out}), attention);
  }
  if (kind_.attention == AttentionRun::kSkipped) {
    // Stands for the largest up-projection of cached context that chunked prefill makes.
    const OpId kernel = kernel_op("attention, profiled", {out});
    graph_.make(
        kernel,
        {"up-projected context", "W x heads x (nope + v) x b", Leaf::kWorkspaceAttention,
         Affine::fixed(element_ * detail::checked_mul(mla_workspace_tokens(deployment_), up))});
    return;
  }
  Variable kv(graph_, apply("kv_b_proj", {out},
                            per_token("up-projected kv", "T x heads x (nope + v) x b", up,
                                      Leaf::kRuntimeIntermediates)));
  Variable k(graph_, apply("concatenate k", {*kv},
                           per_token("k", "T x heads x (nope + rope) x b",
                                     heads * (sizes.nope_dim + sizes.rope_dim),
                                     Leaf::kRuntimeIntermediates)));
  const OpId kernel = kernel_op("attention", {out, *kv, *k});
  graph_.make(kernel, per_token("prefill output", "T x heads x v x b", heads * sizes.v_dim,
                                Leaf::kWorkspaceAttention));
  graph_.make(kernel, per_token_bytes("softmax statistics", "T x heads x 4", Bytes{4} * heads,
                                      Leaf::kWorkspaceAttention));
}

// Every token attends to the chosen latents with absorbed queries; the indexer's scores are made as
// large as they may get (models/deepseek_v32/attention.py). The indexer works on a stream of its
// own, which gets a cuBLAS workspace.
void StepBuilder::profiled_sparse_attention(const AttentionSpec& attention, TensorId out) {
  const models::MlaSpec& sizes = attention.mla;
  const std::int64_t heads = local(attention.heads);
  const OpId kernel = kernel_op("sparse attention, profiled", {out});
  if (kind_.first_run && !indexer_ran_) {
    indexer_ran_ = true;
    TensorInfo workspace{"cuBLAS workspace of the indexer's stream", "by GPU generation",
                         Leaf::kWorkspaceGemm, Affine::fixed(deployment_.cublas_workspace)};
    workspace.kept = true;
    graph_.make(kernel, std::move(workspace));
  }
  graph_.make(kernel, per_token("absorbed q", "T x heads x (kv_rank + rope) x b",
                                heads * (sizes.kv_lora_rank + sizes.rope_dim),
                                Leaf::kRuntimeIntermediates));
  profiled_indexer(kernel, attention);
}

// What sparse_attn_indexer makes room for in a dummy run (layers/sparse_attn_indexer.py); before
// there was a shared workspace, the keys of a whole pass and copies of their parts.
void StepBuilder::profiled_indexer(OpId id, const AttentionSpec& attention) {
  const std::int64_t chooser = attention.mla.indexer_heads * attention.mla.indexer_dim;
  graph_.make(id, per_token_bytes("indexer's q", "T x heads x dim x (b + 1)",
                                  (element_ + Bytes{1}) * chooser, Leaf::kRuntimeIntermediates));
  if (deployment_.rules.keeps_gathered_keys) {
    reserve_workspace(id);
  } else {
    graph_.make(id, {"gathered keys", "2 x 40 L x (dim + 4)", Leaf::kWorkspaceAttention,
                     Affine::fixed(2 * gathered_keys(deployment_))});
  }
  if (deployment_.rules.indexer_logits_profiled) {
    graph_.make(id, {"largest logits of the indexer", "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB",
                     Leaf::kWorkspaceAttention, Affine::fixed(deployment_.indexer_logits)});
  }
}

}  // namespace oomcast::vllm
