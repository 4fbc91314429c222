// The forward pass around attention and MLP, eager and compiled.
#include "sim/engines/vllm/step_builder.hpp"

namespace oomcast::vllm {

using models::AttentionKind;
using models::AttentionSpec;
using models::FfnSpec;
using models::LayerSpec;
using opgraph::OpId;
using opgraph::TensorId;
using opgraph::TensorInfo;
using opgraph::Variable;

bool same_memory(const LayerSpec& left, const LayerSpec& right) {
  const AttentionSpec& a = left.attention;
  const AttentionSpec& b = right.attention;
  const FfnSpec& f = left.ffn;
  const FfnSpec& g = right.ffn;
  return &left == &right ||
         (has_state(a.kind) == has_state(b.kind) && a.heads == b.heads &&
          a.kv_heads == b.kv_heads && a.head_dim == b.head_dim && a.qk_norm == b.qk_norm &&
          (a.kind == AttentionKind::kMla) == (b.kind == AttentionKind::kMla) && f.kind == g.kind &&
          f.width == g.width && f.experts == g.experts && f.expert_width == g.expert_width &&
          f.shared_width == g.shared_width);
}

void StepBuilder::first_hidden() {
  scope_ = role_.first ? "embedding" : "receive";
  if (in_graph()) {
    return;
  }
  if (role_.first && deployment_.takes_embeddings()) {
    hidden_ = graph_.resident(per_token("inputs' embeddings", "T x H x b", model_.hidden));
    return;
  }
  if (role_.first) {
    // Each rank looks up its part of the vocabulary.
    hidden_ = reduced("embeddings, reduced",
                      apply("embedding", {}, per_token("embeddings", "T x H x b", model_.hidden)));
    if (!compiled() && style_.residual == Residual::kNamed) {
      embeddings_ = *hidden_;
    }
    return;
  }
  // Made once, as large as the largest batch.
  const OpId receive = op("intermediate tensors", {});
  const auto make_received = [&](TensorInfo info) {
    info.kept = kind_.first_run;
    return kind_.first_run ? graph_.make(receive, std::move(info))
                           : graph_.resident(std::move(info));
  };
  if (style_.residual == Residual::kStreams) {
    hidden_ = make_received(streams("streams of the stage before"));
    received_ = {*hidden_};
    return;
  }
  const TensorId hidden =
      make_received(per_token("hidden states of the stage before", "T x H x b", model_.hidden));
  const TensorId residual =
      make_received(per_token("residual of the stage before", "T x H x b", model_.hidden));
  hidden_ = hidden;
  residual_ = residual;
  received_ = {hidden, residual};
}

void StepBuilder::pass_layer(const LayerSpec& layer) {
  if (style_.residual == Residual::kStreams) {
    streams_layer(layer);
  } else if (compiled()) {
    compiled_layer(layer);
  } else {
    eager_layer(layer);
  }
}

void StepBuilder::finish_forward() {
  scope_ = "model";
  join_streams();
  if (!role_.last) {
    embeddings_.drop();
    return;  // hidden states and residual go to the next stage
  }
  std::vector<TensorId> terms = {*hidden_};
  if (!residual_.empty()) {
    terms.push_back(*residual_);
  }
  const OpId norm = op("final norm", terms);
  previous_piece_end();
  if (style_.norms_in_place && !residual_.empty()) {
    hidden_ = graph_.view(norm, *hidden_, "hidden states");
  } else if (!normed_copies_.empty()) {
    hidden_ = graph_.view(norm, normed_copies_.front(), "hidden states");
  } else {
    Variable sum(graph_);
    if (!residual_.empty()) {
      sum = graph_.make(norm, compiled() && style_.residual == Residual::kSandwich
                                  ? sum_in_fp32()
                                  : per_token("residual", "T x H x b", model_.hidden));
    }
    hidden_ = graph_.make(norm, per_token("hidden states", "T x H x b", model_.hidden));
  }
  residual_.drop();
  embeddings_.drop();
}

void StepBuilder::make_static_output() {
  std::vector<TensorId> reads;
  if (!hidden_.empty()) {
    reads.push_back(*hidden_);
  }
  TensorInfo output = per_token("graphs' output", "T x H x b", model_.hidden, Leaf::kGraphStaticIo);
  output.kept = true;
  apply("copy out", reads, std::move(output));
}

void StepBuilder::add_and_norm(const char* name, Variable& hidden, Variable& residual) {
  if (residual.empty()) {
    residual = *hidden;
    if (style_.clones_first_residual) {
      residual = apply("clone", {*hidden}, per_token("residual", "T x H x b", model_.hidden));
    }
    hidden = apply(name, {*hidden}, per_token("normed", "T x H x b", model_.hidden));
    time_norm(Norm::kHidden, *hidden);
    return;
  }
  const OpId id = op(name, {*hidden, *residual});
  if (style_.norms_in_place) {
    hidden = graph_.view(id, *hidden, "normed");
    return;
  }
  const TensorId sum = graph_.make(id, per_token("residual", "T x H x b", model_.hidden));
  const TensorId normed = graph_.make(id, per_token("normed", "T x H x b", model_.hidden));
  time_norm(Norm::kHiddenAndResidual, normed);
  hidden = normed;
  residual = sum;
}

TensorId StepBuilder::attention_into(const LayerSpec& layer, TensorId input, Variable& buffer) {
  if (!style_.makes_attention_output) {
    return attention(layer, input);
  }
  buffer = apply("empty_like", {input},
                 per_token("attention output buffer", "T x H x b", model_.hidden));
  const TensorId out = attention(layer, input);
  return graph_.view(op("copy", {out, *buffer}), *buffer, "hidden states");
}

void StepBuilder::eager_layer(const LayerSpec& layer) {
  Variable hidden(graph_, *hidden_);
  Variable residual(graph_);
  if (!residual_.empty()) {
    residual = *residual_;
  }
  Variable buffer(graph_);
  switch (style_.residual) {
    case Residual::kFused: {
      add_and_norm("input_layernorm", hidden, residual);
      {
        // The keyword arguments of the attention call stay in a dictionary of the caller.
        Variable argument(graph_, *hidden);
        if (!style_.keeps_attention_input) {
          argument.drop();
        }
        hidden = attention_into(layer, *hidden, buffer);
        add_and_norm("post_attention_layernorm", hidden, residual);
        hidden = ffn(layer, *hidden);
      }
      break;
    }
    case Residual::kSandwich:
      add_and_norm("input_layernorm", hidden, residual);
      hidden = attention(layer, *hidden);
      hidden = apply("post_attention_layernorm", {*hidden},
                     per_token("normed", "T x H x b", model_.hidden));
      add_and_norm("pre_feedforward_layernorm", hidden, residual);
      hidden = ffn(layer, *hidden);
      hidden = apply("post_feedforward_layernorm", {*hidden},
                     per_token("normed", "T x H x b", model_.hidden));
      break;
    case Residual::kPostNorm:
      hidden = attention(layer, *hidden);
      hidden = apply("post_attention_layernorm", {*hidden},
                     per_token("normed", "T x H x b", model_.hidden));
      hidden = apply("add", {*hidden, *hidden_}, per_token("residual", "T x H x b", model_.hidden));
      residual = *hidden;
      hidden = ffn(layer, *hidden);
      hidden = apply("post_feedforward_layernorm", {*hidden},
                     per_token("normed", "T x H x b", model_.hidden));
      hidden = apply("add", {*hidden, *residual},
                     per_token("hidden states", "T x H x b", model_.hidden));
      break;
    case Residual::kScaled:
      residual = *hidden;
      hidden = apply("input_layernorm", {*hidden}, per_token("normed", "T x H x b", model_.hidden));
      hidden = attention_into(layer, *hidden, buffer);
      hidden = apply("residual + hidden x multiplier", {*hidden, *residual},
                     per_token("residual", "T x H x b", model_.hidden));
      residual = *hidden;
      hidden = apply("post_attention_layernorm", {*hidden},
                     per_token("normed", "T x H x b", model_.hidden));
      hidden = ffn(layer, *hidden);
      hidden = apply("residual + hidden x multiplier", {*hidden, *residual},
                     per_token("hidden states", "T x H x b", model_.hidden));
      if (!style_.returns_residual) {
        residual.drop();
      }
      break;
    case Residual::kNamed: {
      Variable normed(graph_, apply("input_layernorm", {*hidden},
                                    per_token("normed", "T x H x b", model_.hidden)));
      Variable attended(graph_, attention(layer, *normed));
      residual =
          apply("add", {*attended, *hidden}, per_token("residual", "T x H x b", model_.hidden));
      normed = apply("post_attention_layernorm", {*residual},
                     per_token("normed", "T x H x b", model_.hidden));
      hidden = ffn(layer, *normed);
      hidden = apply("add", {*hidden, *residual},
                     per_token("hidden states", "T x H x b", model_.hidden));
      residual.drop();
      break;
    }
    case Residual::kStreams:
      break;  // streams_layer()
  }
  hidden_ = *hidden;
  if (!residual.empty() && style_.residual != Residual::kPostNorm) {
    residual_ = *residual;
  }
}

void StepBuilder::compiled_layer(const LayerSpec& layer) {
  const AttentionSpec& attention = layer.attention;
  const bool mla = attention.kind == AttentionKind::kMla;
  const bool recurrent = has_state(attention.kind);
  const std::int64_t heads = local(recurrent ? attention.state.heads : attention.heads);
  const std::int64_t query = recurrent ? heads * attention.state.head_rows
                             : mla     ? heads * (attention.mla.nope_dim + attention.mla.rope_dim)
                                       : heads * attention.head_dim;
  const std::int64_t key = mla ? 0 : local_kv_heads(attention) * attention.head_dim;
  const std::int64_t out_width = mla ? heads * attention.mla.v_dim : query;

  // Up to the attention: what the kernel reads and the buffer it writes.
  std::vector<TensorId> terms = {*hidden_};
  if (!residual_.empty()) {
    terms.push_back(*residual_);
  }
  const bool embeds = residual_.empty();
  const OpId first_norm = op(embeds ? "norm" : "add and norm", terms);
  // The embedding is the residual; else the sum is new, made before or after its norm.
  constexpr Version kSumFirst{2, 14, 0};
  const bool sum_first = deployment_.rules.torch >= kSumFirst;
  const TensorInfo sum_info = per_token("residual", "T x H x b", model_.hidden);
  Variable residual(graph_);
  if (embeds) {
    residual = graph_.view(first_norm, *hidden_, "residual");
  } else {
    if (style_.residual == Residual::kSandwich) {
      graph_.make(first_norm, sum_in_fp32());
    }
    if (!normed_copies_.empty()) {
      residual = graph_.view(first_norm, normed_copies_.back(), "residual");
    } else if (sum_first) {
      residual = graph_.make(first_norm, sum_info);
    }
  }
  const TensorId normed_input =
      normed_copies_.empty()
          ? graph_.make(first_norm, per_token("normed", "T x H x b", model_.hidden))
          : graph_.view(first_norm, normed_copies_.front(), "normed");
  normed_copies_.clear();
  if (residual.empty()) {
    residual = graph_.make(first_norm, sum_info);
  }
  if (!embeds) {  // with the embedding it is one kernel that has one shape only
    make_timing_buffer({normed_input, *residual});
  }
  // A buffer that is free by then and as large is taken again, where that does not raise the
  // piece's peak as the compiler estimates it: before PyTorch 2.14 only beside an MLP's products
  // (_inductor/codegen/wrapper.py should_reuse_buffer). What came from the stage before is a
  // graph's input and stays as it is.
  const bool takes_again = sum_first || (!embeds && piece_has_mlp_);
  const bool received = !received_.empty() && *hidden_ == received_.front();
  const bool alike = out_width == model_.hidden;
  Variable out(graph_);
  if (alike && !embeds && !received && !mla && takes_again) {
    out = graph_.view(op("attention output", {*hidden_}), *hidden_, "attention output");
  }
  hidden_.drop();
  residual_.drop();
  Variable inputs(graph_);
  Variable latent(graph_);
  Variable rotated_q(graph_);
  Variable rotated_k(graph_);
  if (mla) {
    compiled_latents(attention, normed_input, inputs, latent, rotated_k);
    if (alike && (!embeds || sum_first)) {
      out = graph_.view(op("attention output", {*inputs}), normed_input, "attention output");
    }
  } else if (recurrent) {
    const models::StateSpec& state = attention.state;
    inputs = linear("in_proj", normed_input, model_.hidden,
                    per_token("projected states", "T x (conv + values) x b",
                              local(state.inner + state.groups * state.group_size) + query));
  } else {
    const std::int64_t queries = attention.query_gate ? 2 : 1;
    inputs = linear("qkv_proj", normed_input, model_.hidden,
                    per_token("qkv", "T x (q + 2 kv) x b", queries * query + 2 * key));
  }
  if (!mla && !recurrent) {
    const OpId rotate = op("rotary embedding", {*inputs});
    rotated_k = graph_.make(rotate, per_token("rotated k", "T x kv x b", key));
    // As many keys as queries are one kernel's work, next to what frees the normed input.
    const bool together = attention.heads == attention.kv_heads;
    rotated_q = query == model_.hidden && (takes_again || together)
                    ? graph_.view(rotate, normed_input, "rotated q")
                    : graph_.make(rotate, per_token("rotated q", "T x q x b", query));
    make_timing_buffer({*inputs, *rotated_q, *rotated_k});
  }
  if (out.empty()) {
    out =
        apply("attention output", {*inputs}, per_token("attention output", "T x q x b", out_width));
  }
  previous_piece_end();
  if (mla) {
    mla_kernel(attention, *out);
  } else if (!recurrent && kind_.attention != AttentionRun::kSkipped) {
    const OpId kernel = kernel_op("attention", {*out, *inputs});
    graph_.make(kernel, per_token_bytes("softmax statistics", "T x heads x 4", Bytes{4} * heads,
                                        Leaf::kWorkspaceAttention));
    make_split_buffers(kernel, attention);
  }
  rotated_q.drop();
  rotated_k.drop();
  inputs.drop();
  latent.drop();

  // The piece after it.
  const TensorId projected =
      reduced("attention projection, reduced",
              linear("o_proj", *out, out_width,
                     per_token("attention projection", "T x H x b", model_.hidden)));
  const OpId second_norm = op("add and norm", {projected, *residual});
  Variable sum(graph_, graph_.view(second_norm, projected, "residual"));
  const TensorId normed_again =
      graph_.make(second_norm, per_token("normed", "T x H x b", model_.hidden));
  if (routes_inside(layer.ffn)) {
    for (int i = 0; i < 2; ++i) {
      normed_copies_.push_back(
          graph_.make(second_norm, per_token("normed, copied", "T x H x b", model_.hidden)));
    }
  }
  make_timing_buffer({normed_again, *sum});
  piece_has_mlp_ = layer.ffn.kind != models::FfnKind::kMoe;
  hidden_ = ffn(layer, normed_again);
  residual_ = *sum;
  piece_inputs_.push_back(*out);
  piece_inputs_.push_back(*residual);
}

// Latents and their norm, then queries: made from the normed input or from a latent of their own,
// and copied with the rotated part in place.
void StepBuilder::compiled_latents(const AttentionSpec& attention, TensorId input,
                                   Variable& queries, Variable& latent, Variable& key) {
  const models::MlaSpec& sizes = attention.mla;
  const TensorInfo info = per_token("q", "T x heads x (nope + rope) x b",
                                    local(attention.heads) * (sizes.nope_dim + sizes.rope_dim));
  Variable joint(graph_,
                 linear("kv_a_proj", input, model_.hidden,
                        per_token("kv latents", "T x (q_rank + kv_rank + rope) x b",
                                  sizes.q_lora_rank + sizes.kv_lora_rank + sizes.rope_dim)));
  Variable own(graph_);
  if (sizes.q_lora_rank > 0) {
    own = apply("q_a_layernorm", {*joint},
                per_token("normed q latent", "T x q_rank x b", sizes.q_lora_rank));
  }
  latent = apply("kv_a_layernorm", {*joint},
                 per_token("normed kv latent", "T x kv_rank x b", sizes.kv_lora_rank));
  key =
      apply("rotary embedding of k", {*joint}, per_token("k rope", "T x rope x b", sizes.rope_dim));
  joint.drop();
  Variable plain(graph_, own.empty() ? linear("q_proj", input, model_.hidden, info)
                                     : linear("q_b_proj", *own, sizes.q_lora_rank, info));
  own.drop();
  queries = apply("rotary embedding of q", {*plain}, info);
}

// Where the router runs beside the shared experts, one call takes the normed input three times, and
// compiled code makes it once for each. The next norm takes the two that are left.
bool StepBuilder::routes_inside(const FfnSpec& ffn) const {
  return ffn.kind == models::FfnKind::kMoe && ffn.shared_width > 0 && style_.routes_inside_experts;
}

void StepBuilder::previous_piece_end() {
  for (const TensorId input : piece_inputs_) {
    graph_.hold_to_here(input);
  }
  piece_inputs_.clear();
}

}  // namespace oomcast::vllm
