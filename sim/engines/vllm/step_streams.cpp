// DeepSeek V4's pass: four residual streams that are mixed before and after every sublayer
// (hyper-connections), and attention over latents (vLLM models/deepseek_v4, nvidia/model.py and
// attention.py).
#include <algorithm>

#include "sim/engines/vllm/step_builder.hpp"

namespace oomcast::vllm {

using models::AttentionSpec;
using models::LayerSpec;
using opgraph::Affine;
using opgraph::OpId;
using opgraph::TensorId;
using opgraph::TensorInfo;
using opgraph::Variable;

namespace {

// As many as the weights that join them at the end take in.
std::int64_t residual_streams(const models::ModelSpec& model) {
  const auto join =
      std::find_if(model.after.begin(), model.after.end(),
                   [](const models::TensorSpec& tensor) { return tensor.name == "hc_head_fn"; });
  return join == model.after.end() ? 1 : join->columns.size / model.hidden;
}

// FlashMLA's kernels take 64 or 128 heads.
std::int64_t padded_heads(std::int64_t heads) {
  constexpr std::int64_t kFew = 64;
  return heads <= kFew ? kFew : 2 * kFew;
}

}  // namespace

TensorInfo StepBuilder::streams(std::string name) const {
  return per_token(std::move(name), "T x streams x H x b",
                   residual_streams(model_) * model_.hidden);
}

void StepBuilder::streams_layer(const LayerSpec& layer) {
  // Eager: the model's loop names the layer's arguments until it returns.
  Variable argument(graph_, *hidden_);
  Variable residual_argument(graph_);
  Variable residual(graph_);
  if (residual_.empty()) {
    residual = role_.first ? apply("repeat", {*hidden_}, streams("residual streams")) : *hidden_;
    argument.drop();
  } else {
    residual_argument = *residual_;
    residual = apply("mix in and out", {*hidden_, *residual_}, streams("residual streams"));
    if (compiled()) {
      argument.drop();
      residual_argument.drop();
    }
  }
  hidden_.drop();
  residual_.drop();
  Variable mixed(graph_, apply("mix", {*residual}, per_token("mixed", "T x H x b", model_.hidden)));
  Variable attended(graph_, compressed_attention(layer.attention, *mixed));
  if (compiled()) {
    piece_inputs_.push_back(*residual);
  }
  residual = apply("mix in and out", {*attended, *residual}, streams("residual streams"));
  mixed = apply("mix", {*residual}, per_token("mixed", "T x H x b", model_.hidden));
  attended.drop();
  hidden_ = ffn(layer, *mixed);
  residual_ = *residual;
}

// The streams as they are serve a draft, then they are joined into one.
void StepBuilder::join_streams() {
  if (style_.residual != Residual::kStreams || residual_.empty()) {
    return;
  }
  hidden_ = apply("mix in", {*hidden_, *residual_}, streams("hidden streams"));
  residual_.drop();
  if (role_.last) {
    hidden_ =
        apply("join streams", {*hidden_}, per_token("hidden states", "T x H x b", model_.hidden));
  }
}

TensorId StepBuilder::compressed_attention(const AttentionSpec& attention, TensorId input) {
  const models::CompressedSpec& sizes = attention.compressed;
  const std::int64_t heads = local(attention.heads);
  Variable out(graph_, apply("attention output", {input},
                             per_token("attention output", "T x padded heads x latent x b",
                                       padded_heads(heads) * sizes.latent)));
  if (compiled()) {
    previous_piece_end();
  }
  compressed_kernel(attention, {*out});
  Variable quantised(
      graph_, apply("inverse rotation", {*out},
                    per_token_bytes("quantised attention output", "T x heads x latent",
                                    Bytes{heads * sizes.latent}, Leaf::kRuntimeIntermediates)));
  if (compiled()) {
    piece_inputs_.push_back(*out);
  }
  out.drop();
  const TensorId projected = linear("wo_a and wo_b", *quantised, model_.hidden,
                                    per_token("attention projection", "T x H x b", model_.hidden));
  return reduced("attention projection, reduced", projected);
}

// What the attention op asks for: projections of latents, keys' scores, queries padded to the
// kernel's heads, the indexer's queries and, in the profile run, its largest logits.
void StepBuilder::compressed_kernel(const AttentionSpec& attention,
                                    const std::vector<TensorId>& reads) {
  const models::CompressedSpec& sizes = attention.compressed;
  const std::int64_t heads = local(attention.heads);
  const std::int64_t padded = padded_heads(heads);
  const std::int64_t open = sizes.open_entries();
  Variable latents(graph_,
                   graph_.make(kernel_op("latents", reads),
                               per_token("kv latents", "T x 2 latent x b", 2 * sizes.latent)));
  Variable scores(graph_);
  if (sizes.ratio > 0) {
    scores = graph_.make(
        kernel_op("scores of entries", reads),
        per_token_bytes("values and scores of entries", "T x 2 open x (latent + index) x 4",
                        Bytes{4 * 2 * open * (sizes.latent + sizes.indexer_dim)},
                        Leaf::kRuntimeIntermediates));
  }
  Variable queries(graph_,
                   graph_.make(kernel_op("wq_b", {*latents}),
                               per_token("q", "T x heads x latent x b", heads * sizes.latent)));
  if (heads < padded) {
    queries =
        graph_.make(kernel_op("pad q", {*queries}),
                    per_token("padded q", "T x padded heads x latent x b", padded * sizes.latent));
  }
  if (sizes.indexer_heads > 0) {
    const std::int64_t width = sizes.indexer_heads * sizes.indexer_dim;
    Variable index_queries(graph_,
                           graph_.make(kernel_op("indexer's wq_b", {*latents}),
                                       per_token("indexer's q", "T x heads x dim x b", width)));
    index_queries = graph_.make(kernel_op("quantise indexer's q", {*index_queries}),
                                per_token_bytes("indexer's q, 8 bits", "T x heads x dim",
                                                Bytes{width}, Leaf::kRuntimeIntermediates));
    choose_entries(*index_queries);
  }
  std::vector<TensorId> inputs = reads;
  inputs.push_back(*queries);
  reserve_workspace(kernel_op("attention", inputs));
}

// sparse_attn_indexer in a dummy run.
void StepBuilder::choose_entries(TensorId queries) {
  const OpId id = kernel_op("indexer", {queries});
  reserve_workspace(id);
  if (kind_.attention == AttentionRun::kSkipped) {
    graph_.make(id, {"largest logits of the indexer", "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB",
                     Leaf::kWorkspaceAttention, Affine::fixed(deployment_.indexer_logits)});
  }
}

void StepBuilder::reserve_workspace(OpId id) {
  const Bytes bytes = shared_workspace(deployment_);
  grow_workspace(id, bytes,
                 {"gathered latents and keys", "of max_model_len", Leaf::kWorkspaceAttention,
                  Affine::fixed(bytes)});
}

}  // namespace oomcast::vllm
