// Attention and feed-forward layers of a step.
#include "models/attention_kinds.hpp"
#include "sim/engines/sglang/step_builder.hpp"
#include "sim/kernels/attention.hpp"

namespace oomcast::sglang {

using models::AttentionKind;
using models::AttentionSpec;
using models::FfnKind;
using models::FfnSpec;
using models::LayerSpec;
using opgraph::Affine;
using opgraph::OpId;
using opgraph::TensorId;
using opgraph::Variable;

namespace {

constexpr Bytes kFloatBytes{4};

bool has_tensor(const LayerSpec& layer, std::string_view part) {
  return std::any_of(layer.tensors.begin(), layer.tensors.end(), [part](const auto& tensor) {
    return tensor.name.find(part) != std::string_view::npos;
  });
}

// Twice the query: half of it opens or closes the output.
bool has_output_gate(const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  return std::any_of(layer.tensors.begin(), layer.tensors.end(), [&](const auto& tensor) {
    return tensor.name == "self_attn.qkv_proj.weight" && !tensor.rows.empty() &&
           tensor.rows.front().units * tensor.rows.front().size ==
               2 * attention.heads * attention.head_dim;
  });
}

}  // namespace

// ---- attention
// -----------------------------------------------------------------------------------

TensorId StepBuilder::attention(const LayerSpec& spec, TensorId input) {
  const AttentionSpec& attention = spec.attention;
  if (attention.kind == AttentionKind::kMla) {
    const TensorId partial = mla(attention, input);
    return defers_sums_ ? partial : reduced(partial, deployment_.attention_tp());
  }
  return models::has_state(attention.kind) ? recurrent(attention, input)
                                           : qkv_attention(attention, has_output_gate(spec), input);
}

TensorId StepBuilder::qkv_attention(const AttentionSpec& attention, bool gated, TensorId input) {
  const std::int64_t heads = per_attention_rank(attention.heads);
  const std::int64_t query = heads * attention.head_dim;
  const std::int64_t kv_heads = std::max<std::int64_t>(1, per_attention_rank(attention.kv_heads));
  const std::int64_t keys =
      attention.kv_from_layer ? 0 : kv_heads * (attention.head_dim + attention.v_head_dim);
  const auto of_heads = [&](const char* name) { return per_token(name, "T x q x b", query); };
  const Variable qkv(
      graph_, linear("qkv_proj", input, model_.hidden,
                     per_token("qkv", "T x (q + k + v) x b", (gated ? 2 : 1) * query + keys)));
  const auto turned = per_token("turned k", "T x k x b", kv_heads * attention.head_dim);
  Variable q(graph_);
  Variable turned_keys(graph_);
  Variable gate(graph_);  // opens or closes the output in place
  if (gated && by_parts_) {
    const Variable apart(graph_, apply("take q apart", {*qkv}, of_heads("q")));
    gate = apply("take the gate apart", {*qkv}, of_heads("gate"));
    q = apply("normalise q", {*apart}, of_heads("normed q"));
    second_stream_ = true;
    turned_keys = apply("normalise k", {*qkv}, turned);
    second_stream_ = false;
  } else if (gated) {
    q = apply("turn q", {*qkv}, of_heads("turned q"));
    turned_keys = apply("turn k", {*qkv}, turned);
    gate = apply("take the gate apart", {*qkv}, of_heads("gate"));
  } else if (copied_heads_) {
    const Variable copied_q(graph_, apply("copy q", {*qkv}, of_heads("q")));
    const Variable copied_k(graph_, apply("copy k", {*qkv}, turned));
    q = apply("normalise q", {*copied_q}, of_heads("normed q"));
    turned_keys = apply("normalise k", {*copied_k}, turned);
  } else if (native_norms_) {
    const Variable normed_q(graph_, head_norm("q", *qkv, query));
    const Variable normed_k(graph_, head_norm("k", *qkv, kv_heads * attention.head_dim));
    q = apply("turn q", {*normed_q}, of_heads("turned q"));
    turned_keys = apply("turn k", {*normed_k}, turned);
  }
  if (has_long_rope()) {
    // Phi3LongRoPEScaledRotaryEmbedding, in PyTorch's operators.
    const std::int64_t width = model_.ropes.front().rotary_dim;
    const auto table = [&] { return per_token("angles", "T x d x b", width); };
    const Variable both(graph_, apply("look up", {*qkv}, table()));
    const Variable cosines(graph_, apply("cosines", {*both}, table()));
    const Variable sines(graph_, apply("sines", {*both}, table()));
    const Variable rotated_q(graph_, rotated(*qkv, query));
    q = apply("concatenate q", {*rotated_q}, of_heads("turned q"));
    const Variable rotated_k(graph_, rotated(*qkv, kv_heads * attention.head_dim));
    turned_keys = apply("concatenate k", {*rotated_k}, turned);
  }
  // Queries that are still a part of qkv are copied for the kernel, between the pieces of a
  // prefill.
  const bool copies = q.empty() && (backend() == "fa3" || backend() == "flashinfer");
  if (copies && kind_.decode) {
    q = apply("queries apart", {*qkv}, of_heads("queries"));
  }
  Variable out(graph_, apply("attention output", {*qkv},
                             per_token("attention output", "T x heads x dv x b",
                                       heads * attention.v_head_dim)));
  if (copies && !kind_.decode) {
    const OpId copy = op("queries apart", {*qkv});
    graph_.set_between_pieces(copy);
    q = graph_.make(copy, of_heads("queries"));
  }
  attention_kernel(attention, {*qkv, *out});
  if (copies) {
    q.drop();
  }
  if (gated && by_parts_) {
    gate = apply("sigmoid", {*gate}, of_heads("opened gate"));
    out = apply("gate output", {*out, *gate}, of_heads("gated output"));
  }
  return reduced(linear("o_proj", *out, heads * attention.v_head_dim,
                        per_token("attention projection", "T x H x b", model_.hidden)),
                 deployment_.attention_tp());
}

const std::string& StepBuilder::backend() const {
  return kind_.decode ? deployment_.decode_backend : deployment_.prefill_backend;
}

// x * cos + rotate(x) * sin, an operator at a time.
TensorId StepBuilder::rotated(TensorId heads, std::int64_t width) {
  const auto whole = [&](const char* name) { return per_token(name, "T x width x b", width); };
  const Variable plain(graph_, apply("times cos", {heads}, whole("heads times cos")));
  Variable turned(graph_);
  {
    const Variable half(
        graph_, apply("negate", {heads}, per_token("half", "T x width / 2 x b", width / 2)));
    turned = apply("rotate", {*half}, whole("rotated heads"));
  }
  turned = apply("times sin", {*turned}, whole("rotated heads times sin"));
  return apply("sum", {*plain, *turned}, whole("turned heads"));
}

bool StepBuilder::has_long_rope() const {
  return !model_.ropes.empty() && model_.ropes.front().type == "longrope";
}

// RMS norm of heads in PyTorch's operators: every one makes its own tensor in single precision.
TensorId StepBuilder::head_norm(const char* name, TensorId qkv, std::int64_t width) {
  const auto wide = [&](const char* what) {
    return bytes_per_token(what, "T x width x 4", kFloatBytes * width, Leaf::kRuntimeActivations);
  };
  Variable x(graph_, apply("to fp32", {qkv}, wide("heads, fp32")));
  apply("square", {*x}, wide("squares"));
  Variable normed(graph_, apply("times rsqrt", {*x}, wide("normed heads, fp32")));
  x.drop();
  const Variable scaled(graph_, apply("times weight", {*normed}, wide("scaled heads, fp32")));
  normed.drop();
  return apply("to the model's dtype", {*scaled}, per_token(name, "T x width x b", width));
}

void StepBuilder::attention_kernel(const AttentionSpec& attention,
                                   const std::vector<TensorId>& reads) {
  const OpId kernel = op("attention", reads);
  if (!kind_.decode) {
    graph_.set_between_pieces(kernel);
  }
  const std::int64_t heads = per_attention_rank(attention.heads);
  graph_.make(kernel, bytes_per_token("softmax statistics", "T x heads x 4", kFloatBytes * heads,
                                      Leaf::kWorkspaceAttention));
  if (const std::int64_t splits = this->splits(attention); splits > 1) {
    const bool mla = attention.kind == AttentionKind::kMla;
    const std::int64_t rows = detail::checked_mul(splits, heads);
    graph_.make(kernel, bytes_per_token(
                            "split outputs", "splits x T x heads x dv x 4",
                            kFloatBytes * detail::checked_mul(rows, mla ? attention.mla.kv_lora_rank
                                                                        : attention.v_head_dim),
                            Leaf::kWorkspaceAttention));
    graph_.make(kernel, bytes_per_token("softmax statistics of splits", "splits x T x heads x 4",
                                        kFloatBytes * rows, Leaf::kWorkspaceAttention));
  }
}

// Of a captured decode batch in FlashAttention 3. With latents the rows of all sequences count as
// those of one; in earlier releases any batch was taken for one sequence of one token.
std::int64_t StepBuilder::splits(const AttentionSpec& attention) const {
  if (!kind_.decode || !kind_.captured || deployment_.decode_backend != "fa3") {
    return 1;
  }
  const bool latents = attention.kind == AttentionKind::kMla;
  kernels::AttentionBatch batch;
  kernels::FlashAttention3Options options;
  options.window = attention.window.count();
  if (!deployment_.rules.fa3_splits_unbounded) {
    batch.query_tokens = kind_.batch * kind_.tokens_each;
    batch.max_query_tokens = latents ? batch.query_tokens : kind_.tokens_each;
    batch.sequences = latents ? 1 : kind_.batch;
    options.varlen = latents;
  }
  batch.max_context = deployment_.max_model_len.count();
  batch.query_heads = per_attention_rank(attention.heads);
  if (latents) {  // the rotary part, the latents beside it
    batch.head_dim = attention.mla.rope_dim;
    batch.value_dim = attention.mla.kv_lora_rank;
  } else {
    batch.kv_heads = std::max<std::int64_t>(1, per_attention_rank(attention.kv_heads));
    batch.head_dim = attention.head_dim;
    batch.value_dim = attention.v_head_dim;
  }
  return kernels::flash_attention_3_splits(batch, deployment_.gpu, options);
}

TensorId StepBuilder::mla(const AttentionSpec& attention, TensorId input) {
  const models::MlaSpec& sizes = attention.mla;
  const std::int64_t query =
      per_attention_rank(attention.heads) * (sizes.nope_dim + sizes.rope_dim);
  Variable q(graph_);
  Variable latent(graph_);
  Variable keys(graph_);
  const auto normed_keys = [&] {
    return apply("kv_a_layernorm", {*latent},
                 per_token("normed kv latent", "T x kv_rank x b", sizes.kv_lora_rank));
  };
  const bool absorbed = kind_.decode || kind_.captured;
  if (sizes.q_lora_rank > 0) {
    latent = linear("fused_qkv_a_proj", input, model_.hidden,
                    per_token("q and kv latents", "T x (q_rank + kv_rank + rope) x b",
                              sizes.q_lora_rank + sizes.kv_lora_rank + sizes.rope_dim));
    const Variable normed(graph_,
                          apply("q_a_layernorm", {*latent},
                                per_token("normed q latent", "T x q_rank x b", sizes.q_lora_rank)));
    const bool beside = kind_.captured && models::named(deployment_.rules.latents_beside, model_);
    if (absorbed) {
      second_stream_ = beside;
      keys = normed_keys();
    }
    // Decodes project queries beside the indexer, if there is one.
    second_stream_ = beside && kind_.decode && sizes.indexer_heads > 0;
    q = linear("q_b_proj", *normed, sizes.q_lora_rank,
               per_token("q", "T x heads x (nope + rope) x b", query));
    second_stream_ = false;
  } else {
    q = linear("q_proj", input, model_.hidden,
               per_token("q", "T x heads x (nope + rope) x b", query));
    latent = linear(
        "kv_a_proj", input, model_.hidden,
        per_token("kv latent", "T x (kv_rank + rope) x b", sizes.kv_lora_rank + sizes.rope_dim));
    if (absorbed) {
      keys = normed_keys();
    }
  }
  return absorbed ? mla_absorbed(attention, *q, *latent) : mla_prefill(attention, *q, *latent);
}

// In the latent space: decodes, and whatever is captured.
TensorId StepBuilder::mla_absorbed(const AttentionSpec& attention, TensorId query,
                                   TensorId latent) {
  const models::MlaSpec& sizes = attention.mla;
  const std::int64_t heads = per_attention_rank(attention.heads);
  const Variable absorbed(graph_, apply("absorb q", {query},
                                        per_token("absorbed q", "T x heads x kv_rank x b",
                                                  heads * sizes.kv_lora_rank)));
  Variable joined(graph_);
  if (deployment_.decode_backend != "fa3") {  // kernels that want both parts of q in one tensor
    joined = apply("q by tokens", {query, *absorbed},
                   per_token("q in the latent space", "T x heads x (kv_rank + rope) x b",
                             heads * (sizes.kv_lora_rank + sizes.rope_dim)));
  }
  Variable converted(graph_);
  if (kind_.decode) {
    convert_latents(converted, attention, latent);
  }
  const Variable out(graph_, apply("attention output", {*absorbed, latent},
                                   per_token("latent output", "T x heads x kv_rank x b",
                                             heads * sizes.kv_lora_rank)));
  if (!kind_.decode) {
    convert_latents(converted, attention, latent);
  }
  attention_kernel(attention, {*out});
  converted.drop();
  const Variable values(
      graph_, apply("project values", {*out},
                    per_token("attention output", "T x heads x v x b", heads * sizes.v_dim)));
  return linear("o_proj", *values, heads * sizes.v_dim,
                per_token("attention projection", "T x H x b", model_.hidden));
}

void StepBuilder::convert_latents(Variable& converted, const AttentionSpec& attention,
                                  TensorId latent) {
  const Bytes bytes = converted_latents(deployment_, backend(), attention, kind_.pool);
  if (bytes == Bytes{0}) {
    return;
  }
  const OpId conversion = op("latents in the queries' dtype", {latent});
  if (!kind_.decode) {
    graph_.set_between_pieces(conversion);
  }
  converted = graph_.make(conversion, {"latents in the queries' dtype", "(T + P) x latent x b",
                                       Leaf::kWorkspaceAttention, Affine::fixed(bytes)});
}

TensorId StepBuilder::mla_prefill(const AttentionSpec& attention, TensorId query, TensorId latent) {
  const models::MlaSpec& sizes = attention.mla;
  const std::int64_t heads = per_attention_rank(attention.heads);
  const Variable normed(
      graph_, apply("kv_a_layernorm", {latent},
                    per_token("normed kv latent", "T x kv_rank x b", sizes.kv_lora_rank)));
  const Variable up(graph_, linear("kv_b_proj", *normed, sizes.kv_lora_rank,
                                   per_token("keys and values", "T x heads x (nope + v) x b",
                                             heads * (sizes.nope_dim + sizes.v_dim))));
  const Variable keys(graph_, apply("concatenate k", {*up, latent},
                                    per_token("keys", "T x heads x (nope + rope) x b",
                                              heads * (sizes.nope_dim + sizes.rope_dim))));
  const Variable out(
      graph_, apply("attention output", {query, *keys, *up},
                    per_token("attention output", "T x heads x v x b", heads * sizes.v_dim)));
  attention_kernel(attention, {*out});
  return linear("o_proj", *out, heads * sizes.v_dim,
                per_token("attention projection", "T x H x b", model_.hidden));
}

// Gated delta nets and Mamba: projections, convolution, the scan between the pieces, gated norm.
TensorId StepBuilder::recurrent(const AttentionSpec& attention, TensorId input) {
  const models::StateSpec& state = attention.state;
  const std::int64_t inner = per_attention_rank(state.inner);
  const std::int64_t groups = per_attention_rank(state.groups * state.group_size);
  const std::int64_t heads = per_attention_rank(state.heads);
  const bool delta = attention.kind == AttentionKind::kGatedDeltaNet;
  const std::int64_t value = delta ? heads * state.head_rows : inner;
  const std::int64_t mixed = inner + groups;
  const Variable projected(
      graph_, linear("in_proj", input, model_.hidden,
                     per_token("projections", "T x (q + k + v + z) x b", mixed + value)));
  const Variable small(
      graph_, apply("in_proj of gates", {input}, per_token("gates", "T x 2 heads x b", 2 * heads)));
  Variable copied(graph_);
  Variable copied_gate(graph_);
  if (by_parts_) {
    copied = apply("take q, k, v apart", {*projected},
                   per_token("q, k, v", "T x (q + k + v) x b", mixed));
    copied_gate = apply("take z apart", {*projected}, per_token("z", "T x v x b", value));
  }
  Variable out(graph_,
               apply("scan output", {*projected}, per_token("scan output", "T x v x b", value)));
  const OpId scan = op("scan", {*projected, *small, *out});
  if (!kind_.decode) {
    graph_.set_between_pieces(scan);
  }
  graph_.make(scan, per_token("mixed q, k, v", "T x (q + k + v) x b", mixed));
  graph_.make(scan, per_token("convolved q, k, v", "T x (q + k + v) x b", mixed));
  const Variable gate(graph_, graph_.make(scan, per_token("z", "T x v x b", value)));
  const Variable scanned(graph_, *out);  // held until the layer returns
  if (!by_parts_) {                      // else in place
    out = apply("gated norm", {*out, *gate}, per_token("normed", "T x v x b", value));
  }
  return reduced(linear("out_proj", *out, value,
                        per_token("attention projection", "T x H x b", model_.hidden)),
                 deployment_.attention_tp());
}

// ---- feed-forward
// --------------------------------------------------------------------------------

TensorId StepBuilder::feed_forward(const LayerSpec& spec, TensorId input) {
  const bool moe = spec.ffn.kind == FfnKind::kMoe;
  const int ranks = moe ? deployment_.tp : deployment_.dense_tp.value_or(deployment_.tp);
  const bool travels = moe && exchange_.kind != Exchange::kNone;
  if (deployment_.attention_dp == 1 || ranks == 1 || travels) {
    return feed_forward_here(spec, input);
  }
  // What ranks of several attention groups divide runs on the tokens of all groups.
  gathered_ = deployment_.attention_dp;
  const Variable all(graph_, apply("gather", {input},
                                   per_token("gathered tokens", "dp x T x H x b", model_.hidden)));
  const Variable out(graph_, feed_forward_here(spec, *all));
  gathered_ = 1;
  return apply("scatter", {*out}, per_token("own tokens", "T x H x b", model_.hidden));
}

TensorId StepBuilder::feed_forward_here(const LayerSpec& spec, TensorId input) {
  const FfnSpec& ffn = spec.ffn;
  if (ffn.kind == FfnKind::kMoe) {
    return experts(spec, input);
  }
  const int ranks = deployment_.dense_tp.value_or(deployment_.tp);
  const TensorId partial = mlp(div_ceil(ffn.width, ranks), ffn.kind == FfnKind::kGated, input);
  return defers_sums_ ? partial : reduced(partial, ranks);
}

TensorId StepBuilder::mlp(std::int64_t own, bool gated, TensorId input) {
  Variable up(graph_, linear(gated ? "gate_up_proj" : "up_proj", input, model_.hidden,
                             per_token("gate and up", gated ? "T x 2I x b" : "T x I x b",
                                       gated ? 2 * own : own)));
  const Variable active(graph_,
                        apply("activation", {*up}, per_token("activated", "T x I x b", own)));
  if (plain_residuals_) {
    up.drop();
  }
  return linear("down_proj", *active, own, per_token("MLP output", "T x H x b", model_.hidden));
}

// Shared experts that are not fused run beside the routed ones: first and on a copy where a gate of
// their own weighs them (the routed ones then on a second stream), else first in prefills and
// afterwards on a second stream in captured decodes. Routed experts write over their input but for
// those with gated shared ones.
TensorId StepBuilder::experts(const LayerSpec& spec, TensorId input) {
  const FfnSpec& ffn = spec.ffn;
  const bool fused = deployment_.fuses_shared_experts(spec);
  const bool beside = ffn.shared_width > 0 && !fused;
  const bool latent = spec.attention.kind == AttentionKind::kMla;
  const bool gated = has_tensor(spec, "shared_expert_gate");
  const bool afterwards = beside && latent && kind_.decode;
  Variable shared(graph_);
  if (beside && latent && !afterwards) {
    shared = shared_experts(ffn, input, false);
  } else if (beside && !latent) {
    const Variable copy(graph_,
                        apply("clone", {input}, per_token("copy", "T x H x b", model_.hidden)));
    shared = shared_experts(ffn, *copy, !gated);
  }
  second_stream_ = gated || (beside && !latent);
  const bool wide_router =
      std::any_of(spec.tensors.begin(), spec.tensors.end(), [](const auto& tensor) {
        return tensor.name.ends_with("mlp.gate.weight") &&
               tensor.element == models::Element::kFloat32;
      });
  if (wide_router) {
    apply("input in fp32", {input},
          bytes_per_token("input in fp32", "T x H x 4", Bytes{4} * model_.hidden));
  }
  const Variable router(graph_, linear("gate", input, model_.hidden,
                                       per_token("router logits", "T x E x b", ffn.experts)));
  const std::int64_t chosen = ffn.experts_per_token + (fused ? 1 : 0);
  const Variable weights(
      graph_,
      apply("top-k", {*router}, bytes_per_token("expert weights", "T x k x 4", Bytes{4} * chosen)));
  const Variable ids(graph_, apply("top-k", {*router},
                                   bytes_per_token("expert ids", "T x k x 4", Bytes{4} * chosen)));
  Variable apart(graph_);
  TensorId out = input;
  if (exchange_.kind != Exchange::kNone) {
    out = exchanged(ffn, {input, *weights, *ids});
  } else {
    if (beside && gated) {
      apart =
          apply("routed output", {input}, per_token("routed output", "T x H x b", model_.hidden));
    }
    expert_caches(ffn, {input, *weights, *ids}, fused);
    const TensorId written = apart.empty() ? input : *apart;
    out = graph_.view(op("sum over experts", {written}), written, "routed output");
  }
  second_stream_ = false;
  if (afterwards) {
    second_stream_ = true;
    shared = shared_experts(ffn, input, false);
    second_stream_ = false;
  }
  if (!shared.empty() && (latent || gated)) {
    op("add shared experts in place", {out, *shared});
  } else if (!shared.empty()) {
    out = apply("add shared experts", {out, *shared},
                per_token("sum of experts", "T x H x b", model_.hidden));
  }
  // Where tokens travel, their results come back whole.
  return exchange_.kind == Exchange::kNone && !defers_sums_ ? reduced(out, deployment_.tp) : out;
}

// DeepGEMM over tokens that arrive from all ranks, by expert one after the other or in fixed slots.
TensorId StepBuilder::exchanged(const FfnSpec& ffn, const std::vector<TensorId>& reads) {
  const OpId dispatch = op("dispatch", reads);
  std::vector<TensorId> arrived;
  for (opgraph::TensorInfo& tensor : exchange_.dispatched(element_)) {
    arrived.push_back(graph_.make(dispatch, std::move(tensor)));
  }
  const auto b = element_.count();
  const std::int64_t gates = ffn.gated ? 2 : 1;
  const auto rows = [&](const char* name, const char* formula, std::int64_t bytes) {
    if (exchange_.kind == Exchange::kBatched) {
      return opgraph::TensorInfo{name, formula, Leaf::kWorkspaceMoe,
                                 Affine::fixed(Bytes{bytes} * exchange_.slots())};
    }
    return exchange_.per_routed(name, formula, static_cast<double>(bytes), Leaf::kWorkspaceMoe);
  };
  const Variable first(graph_, apply("experts, first product", arrived,
                                     rows("gate and up of experts", "rows x 2I x b",
                                          product(gates, ffn.expert_width, b))));
  const Variable active(graph_, apply("experts, activation", {*first},
                                      rows("activated, of experts", "rows x I", ffn.expert_width)));
  const Variable second(
      graph_, apply("experts, second product", {*active},
                    rows("outputs of experts", "rows x H x b", product(model_.hidden, b))));
  return apply("combine", {*second}, per_token("routed output", "T x H x b", model_.hidden));
}

TensorId StepBuilder::shared_experts(const FfnSpec& ffn, TensorId input, bool weighed) {
  const std::int64_t width =
      exchange_.kind == Exchange::kNone ? per_rank(ffn.shared_width) : ffn.shared_width;
  if (!weighed) {
    return mlp(width, ffn.gated, input);
  }
  const Variable out(graph_, mlp(width, ffn.gated, input));
  return apply("weigh shared experts", {*out},
               per_token("shared output", "T x H x b", model_.hidden));
}

bool StepBuilder::activates_in_product() const {
  return model_.quantization && model_.quantization->method == "mxfp4" &&
         !deployment_.widens_fp4_experts();
}

// Triton's fused experts: each product has its own buffer.
void StepBuilder::expert_caches(const FfnSpec& ffn, const std::vector<TensorId>& reads,
                                bool fused_shared) {
  const std::int64_t chosen = ffn.experts_per_token + (fused_shared ? 1 : 0);
  const std::int64_t width = deployment_.ep > 1 ? ffn.expert_width : per_rank(ffn.expert_width);
  const std::int64_t gates = ffn.gated ? 2 : 1;
  const std::int64_t inner = ffn.expert_input(model_.hidden);
  const std::int64_t stored = ffn.experts + (fused_shared ? 1 : 0);
  const Bytes padding = element_ * (kind_.expert_padding * (stored + 1));
  const auto cache = [&](const char* name, const char* formula, std::int64_t columns, Bytes pad) {
    opgraph::TensorInfo info = per_token(name, formula, chosen * columns, Leaf::kWorkspaceMoe);
    info.bytes += Affine::fixed(pad * columns);
    return info;
  };
  Variable aligned(graph_, apply("align experts", reads,
                                 bytes_per_token("sorted rows", "T x k x 4", Bytes{4} * chosen,
                                                 Leaf::kWorkspaceMoe)));
  if (activates_in_product()) {
    const Variable active(graph_,
                          apply("experts, first product", reads,
                                cache("activated, of experts", "T x k x I x b", width, {})));
    apply("experts, second product", {*active},
          cache("outputs of experts", "T x k x H x b", inner, {}));
    return;
  }
  const Variable first(
      graph_, apply("experts, first product", reads,
                    cache("gate and up of experts", "T x k x 2I x b", gates * width, padding)));
  if (quantised_inputs_) {
    graph_.make(op("quantise input", {reads.front()}),
                bytes_per_token("quantised input", "T x H", Bytes{inner}));
  }
  const Variable second(graph_,
                        apply("experts, activation", {*first},
                              cache("activated, of experts", "T x k x I x b", width, padding)));
  const Variable third(graph_, apply("experts, second product", {*second},
                                     cache("outputs of experts", "T x k x H x b", inner, {})));
  if (quantised_inputs_) {
    graph_.make(op("quantise activated", {*second}),
                bytes_per_token("quantised activated", "T x k x I", Bytes{chosen * width}));
  }
  op("reduce", {*first, *second, *third});
}

}  // namespace oomcast::sglang
