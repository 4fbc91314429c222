#include "sim/engines/vllm/step_program.hpp"

#include <algorithm>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/layer_style.hpp"
#include "sim/engines/vllm/resident.hpp"

namespace oomcast::vllm {
namespace {

using models::AttentionKind;
using models::AttentionSpec;
using models::DType;
using models::FfnKind;
using models::FfnSpec;
using models::LayerSpec;
using opgraph::Affine;
using opgraph::OpGraph;
using opgraph::OpId;
using opgraph::ShapeVar;
using opgraph::TensorId;
using opgraph::TensorInfo;
using opgraph::Variable;

constexpr std::int64_t kVocabularyPadding = 64;

// Whether two layers make the same tensors; windows and rope tables make no difference.
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

class StepBuilder {
 public:
  StepBuilder(const Deployment& deployment, int stage, StepKind kind)
      : deployment_(deployment),
        model_(*deployment.model),
        role_(role_of(deployment, stage)),
        layers_(models::stage_layers(*deployment.model, deployment.shard(stage))),
        kind_(kind),
        style_(layer_style(model_.family, deployment.launch.version)),
        element_(Bytes{models::bits_of(deployment.dtype) / 8}),
        hidden_(graph_),
        residual_(graph_) {}

  OpGraph build() {
    first_hidden();
    switch (kind_.execution) {
      case Execution::kEager:
      case Execution::kCompiled:
        for_layers([this](const LayerSpec& layer) { pass_layer(layer); });
        finish_forward();
        break;
      case Execution::kPiecewiseGraph:
        for_layers([this](const LayerSpec& layer) { attention_beside_graphs(layer.attention); });
        break;
      case Execution::kFullGraph:
        break;
    }
    if (role_.last && kind_.sampling != Sampling::kNone) {
      sample();
    }
    hidden_.drop();
    residual_.drop();
    for (const TensorId tensor : received_) {
      graph_.hold_to_here(tensor);  // the runner's own variables
    }
    return std::move(graph_);
  }

 private:
  template <typename Pass>
  void for_layers(Pass pass) {
    const LayerSpec* previous = nullptr;
    int alike = 0;
    for (int layer = layers_.begin; layer < layers_.end; ++layer) {
      const LayerSpec& spec = model_.layer(layer);
      alike = previous != nullptr && same_memory(*previous, spec) ? alike + 1 : 1;
      previous = &spec;
      if (alike <= kMostAlikeLayers) {
        scope_ = "layer " + std::to_string(layer);
        pass(spec);
      }
    }
  }

  // ---- sizes ------------------------------------------------------------------------------------

  [[nodiscard]] bool compiled() const { return kind_.execution == Execution::kCompiled; }
  [[nodiscard]] bool in_graph() const { return runs_in_graph(kind_.execution); }
  [[nodiscard]] std::int64_t local(std::int64_t size) const {
    return div_ceil(size, deployment_.tp);
  }
  [[nodiscard]] std::int64_t local_kv_heads(const AttentionSpec& attention) const {
    return std::max<std::int64_t>(1, local(attention.kv_heads));
  }

  // T x width x b.
  [[nodiscard]] TensorInfo per_token(std::string name, std::string formula, std::int64_t width,
                                     Leaf leaf = Leaf::kRuntimeActivations) const {
    return {std::move(name), std::move(formula), leaf,
            Affine::per(ShapeVar::kTokens, element_ * width)};
  }
  [[nodiscard]] TensorInfo per_token_bytes(std::string name, std::string formula, Bytes bytes,
                                           Leaf leaf) const {
    return {std::move(name), std::move(formula), leaf, Affine::per(ShapeVar::kTokens, bytes)};
  }
  [[nodiscard]] static TensorInfo per_row(std::string name, std::string formula, Bytes bytes,
                                          Leaf leaf = Leaf::kRuntimeLogits) {
    return {std::move(name), std::move(formula), leaf, Affine::per(ShapeVar::kRows, bytes)};
  }

  // ---- small pieces -----------------------------------------------------------------------------

  OpId op(std::string name, const std::vector<TensorId>& reads) {
    return graph_.op(std::move(name), scope_, reads);
  }
  OpId kernel_op(std::string name, const std::vector<TensorId>& reads) {
    const OpId id = op(std::move(name), reads);
    graph_.set_between_pieces(id);
    return id;
  }
  TensorId apply(std::string op_name, const std::vector<TensorId>& reads, TensorInfo out) {
    return graph_.make(op(std::move(op_name), reads), std::move(out));
  }

  // A linear layer; FP8 and INT8 ones quantise their input first. The first matrix product of the
  // process makes cuBLAS' workspace.
  TensorId linear(std::string name, TensorId input, std::int64_t in_width, TensorInfo out) {
    const OpId id = op(std::move(name), {input});
    if (uses_cublas(deployment_)) {
      make_cublas_workspace(id);
    }
    if (quantises_activations(deployment_)) {
      graph_.make(id, per_token_bytes("quantised input", "T x K", Bytes{in_width},
                                      Leaf::kRuntimeIntermediates));
    }
    return graph_.make(id, std::move(out));
  }

  void make_cublas_workspace(OpId id) {
    if (!kind_.first_on_stream || cublas_made_) {
      return;
    }
    cublas_made_ = true;
    TensorInfo workspace{"cuBLAS workspace", "by GPU generation", Leaf::kWorkspaceGemm,
                         Affine::fixed(deployment_.cublas_workspace)};
    workspace.kept = true;
    graph_.make(id, std::move(workspace));
  }

  // Row-parallel output: with tensor parallelism the sum over ranks is another tensor.
  TensorId reduced(const char* name, TensorId partial) {
    if (deployment_.tp == 1) {
      return partial;
    }
    return apply("all_reduce", {partial}, per_token(name, "T x H x b", model_.hidden));
  }

  // ---- forward pass -----------------------------------------------------------------------------

  void first_hidden() {
    scope_ = role_.first ? "embedding" : "receive";
    if (in_graph()) {
      return;
    }
    if (role_.first) {
      hidden_ = apply("embedding", {}, per_token("embeddings", "T x H x b", model_.hidden));
      return;
    }
    // Made once, as large as the largest batch.
    const OpId receive = op("intermediate tensors", {});
    const auto make_received = [&](const char* name) {
      TensorInfo info = per_token(name, "T x H x b", model_.hidden);
      info.kept = kind_.first_run;
      return kind_.first_run ? graph_.make(receive, std::move(info))
                             : graph_.resident(std::move(info));
    };
    const TensorId hidden = make_received("hidden states of the stage before");
    const TensorId residual = make_received("residual of the stage before");
    hidden_ = hidden;
    residual_ = residual;
    received_ = {hidden, residual};
  }

  void pass_layer(const LayerSpec& layer) {
    if (compiled()) {
      compiled_layer(layer);
    } else {
      eager_layer(layer);
    }
  }

  void finish_forward() {
    scope_ = "model";
    if (!role_.last) {
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
    } else {
      hidden_ = graph_.make(norm, per_token("hidden states", "T x H x b", model_.hidden));
    }
    residual_.drop();
  }

  // Norm with the residual added: in place, or as two new tensors.
  void add_and_norm(const char* name, Variable& hidden, Variable& residual) {
    if (residual.empty()) {
      residual = *hidden;
      if (style_.clones_first_residual) {
        residual = apply("clone", {*hidden}, per_token("residual", "T x H x b", model_.hidden));
      }
      hidden = apply(name, {*hidden}, per_token("normed", "T x H x b", model_.hidden));
      return;
    }
    const OpId id = op(name, {*hidden, *residual});
    if (style_.norms_in_place) {
      hidden = graph_.view(id, *hidden, "normed");
      return;
    }
    const TensorId sum = graph_.make(id, per_token("residual", "T x H x b", model_.hidden));
    const TensorId normed = graph_.make(id, per_token("normed", "T x H x b", model_.hidden));
    hidden = normed;
    residual = sum;
  }

  void eager_layer(const LayerSpec& layer) {
    Variable hidden(graph_, *hidden_);
    Variable residual(graph_);
    if (!residual_.empty()) {
      residual = *residual_;
    }
    switch (style_.residual) {
      case Residual::kFused: {
        add_and_norm("input_layernorm", hidden, residual);
        {
          // The keyword arguments of the attention call stay in a dictionary of the caller.
          Variable argument(graph_, *hidden);
          if (!style_.keeps_attention_input) {
            argument.drop();
          }
          hidden = attention(layer, *hidden);
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
        hidden =
            apply("add", {*hidden, *hidden_}, per_token("residual", "T x H x b", model_.hidden));
        residual = *hidden;
        hidden = ffn(layer, *hidden);
        hidden = apply("post_feedforward_layernorm", {*hidden},
                       per_token("normed", "T x H x b", model_.hidden));
        hidden = apply("add", {*hidden, *residual},
                       per_token("hidden states", "T x H x b", model_.hidden));
        break;
      case Residual::kScaled:
        residual = *hidden;
        hidden =
            apply("input_layernorm", {*hidden}, per_token("normed", "T x H x b", model_.hidden));
        hidden = attention(layer, *hidden);
        hidden = apply("residual + hidden x multiplier", {*hidden, *residual},
                       per_token("residual", "T x H x b", model_.hidden));
        residual = *hidden;
        hidden = apply("post_attention_layernorm", {*hidden},
                       per_token("normed", "T x H x b", model_.hidden));
        hidden = ffn(layer, *hidden);
        hidden = apply("residual + hidden x multiplier", {*hidden, *residual},
                       per_token("hidden states", "T x H x b", model_.hidden));
        residual.drop();
        break;
    }
    hidden_ = *hidden;
    if (!residual.empty() && style_.residual != Residual::kPostNorm) {
      residual_ = *residual;
    }
  }

  // ---- attention --------------------------------------------------------------------------------

  TensorId attention(const LayerSpec& layer, TensorId input) {
    return layer.attention.kind == AttentionKind::kMla ? mla(layer.attention, input)
                                                       : qkv_attention(layer, input);
  }

  TensorId qkv_attention(const LayerSpec& layer, TensorId input) {
    const AttentionSpec& attention = layer.attention;
    const std::int64_t query = local(attention.heads) * attention.head_dim;
    const std::int64_t key = local_kv_heads(attention) * attention.head_dim;
    Variable qkv(graph_, linear("qkv_proj", input, model_.hidden,
                                per_token("qkv", "T x (q + 2 kv) x b", query + 2 * key)));
    Variable q(graph_);
    Variable k(graph_);
    q = graph_.view(op("split", {*qkv}), *qkv, "q");
    if (attention.qk_norm) {
      q = apply("q_norm", {*q}, per_token("normed q", "T x q x b", query));
      k = apply("k_norm", {*qkv}, per_token("normed k", "T x kv x b", key));
    }
    Variable out(graph_, attend(attention, {*q, *qkv}, query));
    const TensorId partial = linear("o_proj", *out, query,
                                    per_token("attention projection", "T x H x b", model_.hidden));
    return reduced("attention projection, reduced", partial);
  }

  // The attention kernel with its output and softmax statistics.
  TensorId attend(const AttentionSpec& attention, const std::vector<TensorId>& reads,
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

  // Where full graphs are captured, FlashAttention 3 keeps its split count fixed for every batch
  // within the captured sizes: fp32 partial outputs and their statistics.
  void make_split_buffers(OpId kernel, const AttentionSpec& attention) {
    if (kind_.attention != AttentionRun::kSplits || !splits_keys(deployment_)) {
      return;
    }
    const std::int64_t dim =
        attention.kind == AttentionKind::kMla ? attention.mla.kv_lora_rank : attention.head_dim;
    graph_.make(kernel,
                per_token_bytes("split-KV partial outputs", "32 x T x q x 4",
                                Bytes{4} * (kAttentionSplits * local(attention.heads) * dim),
                                Leaf::kWorkspaceAttention));
    graph_.make(kernel, per_token_bytes("split-KV statistics", "32 x T x heads x 4",
                                        Bytes{4} * (kAttentionSplits * local(attention.heads)),
                                        Leaf::kWorkspaceAttention));
  }

  void attention_beside_graphs(const AttentionSpec& attention) {
    if (has_state(attention.kind)) {
      return;
    }
    const OpId kernel = kernel_op("attention", {});
    graph_.make(kernel,
                per_token_bytes("softmax statistics", "T x heads x 4",
                                Bytes{4} * local(attention.heads), Leaf::kWorkspaceAttention));
    make_split_buffers(kernel, attention);
  }

  TensorId mla(const AttentionSpec& attention, TensorId input) {
    const models::MlaSpec& sizes = attention.mla;
    const std::int64_t heads = local(attention.heads);
    const std::int64_t query = heads * (sizes.nope_dim + sizes.rope_dim);
    Variable q(graph_);
    Variable latent(graph_);
    if (sizes.q_lora_rank > 0) {
      latent = linear("fused_qkv_a_proj", input, model_.hidden,
                      per_token("q and kv latents", "T x (q_rank + kv_rank + rope) x b",
                                sizes.q_lora_rank + sizes.kv_lora_rank + sizes.rope_dim));
      Variable normed(graph_,
                      apply("q_a_layernorm", {*latent},
                            per_token("normed q latent", "T x q_rank x b", sizes.q_lora_rank)));
      q = linear("q_b_proj", *normed, sizes.q_lora_rank,
                 per_token("q", "T x heads x (nope + rope) x b", query));
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

  void mla_kernel(const AttentionSpec& attention, TensorId out) {
    const models::MlaSpec& sizes = attention.mla;
    const std::int64_t heads = local(attention.heads);
    const std::int64_t up = heads * (sizes.nope_dim + sizes.v_dim);
    if (kind_.attention == AttentionRun::kSplits && splits_keys(deployment_)) {
      // Decodes: queries absorbed into the latent space, one latent output a head.
      const OpId absorb = kernel_op("absorb q", {out});
      Variable absorbed(
          graph_,
          graph_.make(absorb, per_token("absorbed q", "T x heads x kv_rank x b",
                                        heads * sizes.kv_lora_rank, Leaf::kRuntimeIntermediates)));
      const OpId kernel = kernel_op("attention", {out, *absorbed});
      graph_.make(kernel, per_token("latent output", "T x heads x kv_rank x b",
                                    heads * sizes.kv_lora_rank, Leaf::kRuntimeIntermediates));
      make_split_buffers(kernel, attention);
      return;
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

  // ---- feed-forward -----------------------------------------------------------------------------

  TensorId ffn(const LayerSpec& layer, TensorId input) {
    const FfnSpec& spec = layer.ffn;
    if (spec.kind == FfnKind::kMoe) {
      return moe(spec, input);
    }
    return mlp(spec, spec.width, input, true);
  }

  // Sums over the ranks inside, while its own variables live, or returns the rank's part.
  TensorId mlp(const FfnSpec& spec, std::int64_t whole_width, TensorId input, bool reduces) {
    const std::int64_t width = local(whole_width);
    const bool gated = spec.kind == FfnKind::kGated || (spec.kind == FfnKind::kMoe && spec.gated);
    Variable up(graph_,
                linear(gated ? "gate_up_proj" : "up_proj", input, model_.hidden,
                       per_token(gated ? "gate_up" : "up", gated ? "T x 2I/tp x b" : "T x I/tp x b",
                                 gated ? 2 * width : width, Leaf::kRuntimeIntermediates)));
    Variable activated(graph_, apply("activation", {*up},
                                     per_token("activation output", "T x I/tp x b", width,
                                               Leaf::kRuntimeIntermediates)));
    make_timing_buffer({*up, *activated});
    if (compiled() || !style_.mlp_keeps_gate_up) {
      up.drop();
    }
    const TensorId partial =
        linear("down_proj", *activated, width, per_token("MLP output", "T x H x b", model_.hidden));
    return reduces ? reduced("MLP output, reduced", partial) : partial;
  }

  // Timing a freshly compiled kernel flushes the L2 cache through a buffer of its size.
  void make_timing_buffer(const std::vector<TensorId>& beside) {
    if (!compiled() || !kind_.first_run || deployment_.assumed.warm_compile_cache) {
      return;
    }
    const OpId id = op("timing of compiled kernels", beside);
    graph_.make(id, {"L2-sized timing buffer", "L2", Leaf::kWorkspaceGemm,
                     Affine::fixed(deployment_.gpu.l2_bytes)});
  }

  TensorId moe(const FfnSpec& spec, TensorId input) {
    Variable logits(graph_, linear("gate", input, model_.hidden,
                                   per_token("router logits", "T x E x b", spec.experts,
                                             Leaf::kRuntimeIntermediates)));
    Variable shared(graph_);
    if (spec.shared_width > 0) {
      shared = mlp(spec, spec.shared_width, input, false);
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

  TensorId experts(const FfnSpec& spec, const std::vector<TensorId>& reads) {
    const OpId id = op("fused experts", reads);
    const Bytes workspace =
        kind_.first_run ? expert_workspace(deployment_, spec, deployment_.max_num_batched_tokens)
                        : Bytes{0};
    if (workspace > made_workspace_) {
      made_workspace_ = workspace;
      TensorInfo info{"expert workspaces", "of max_num_batched_tokens, by kernel",
                      Leaf::kWorkspaceMoe, Affine::fixed(workspace)};
      info.kept = true;
      graph_.make(id, std::move(info));
    }
    if (quantises_activations(deployment_)) {
      graph_.make(id, per_token_bytes("quantised input", "T x H", Bytes{model_.hidden},
                                      Leaf::kRuntimeIntermediates));
    }
    const Bytes sorted = Bytes{8} * spec.experts_per_token;
    graph_.make(id, per_token_bytes("tokens sorted by expert", "T x k x 8", sorted,
                                    Leaf::kRuntimeIntermediates));
    return graph_.make(id, per_token("experts' output", "T x H x b", model_.hidden));
  }

  // ---- compiled layer ---------------------------------------------------------------------------

  // torch.compile cuts the model at its attention ops. A piece runs from one attention's output to
  // the next one's inputs; its own inputs (attention output, residual) are held by the caller until
  // it returns.
  void compiled_layer(const LayerSpec& layer) {
    const AttentionSpec& attention = layer.attention;
    const bool mla = attention.kind == AttentionKind::kMla;
    const std::int64_t heads = local(attention.heads);
    const std::int64_t query = mla ? heads * (attention.mla.nope_dim + attention.mla.rope_dim)
                                   : heads * attention.head_dim;
    const std::int64_t key = mla ? 0 : local_kv_heads(attention) * attention.head_dim;
    const std::int64_t out_width = mla ? heads * attention.mla.v_dim : query;

    // Up to the attention: what the kernel reads and the buffer it writes. The sum takes the place
    // of the newer of its terms.
    std::vector<TensorId> terms = {*hidden_};
    if (!residual_.empty()) {
      terms.push_back(*residual_);
    }
    const OpId first_norm = op("add and norm", terms);
    Variable residual(graph_, graph_.view(first_norm, *hidden_, "residual"));
    const TensorId normed_input =
        graph_.make(first_norm, per_token("normed", "T x H x b", model_.hidden));
    hidden_.drop();
    residual_.drop();
    Variable inputs(graph_);
    Variable latent(graph_);
    if (mla) {
      latent = linear("kv_a_proj", normed_input, model_.hidden,
                      per_token("kv latents", "T x (q_rank + kv_rank + rope) x b",
                                attention.mla.q_lora_rank + attention.mla.kv_lora_rank +
                                    attention.mla.rope_dim));
      inputs = linear("q_proj", *latent, model_.hidden,
                      per_token("q", "T x heads x (nope + rope) x b", query));
    } else {
      inputs = linear("qkv_proj", normed_input, model_.hidden,
                      per_token("qkv", "T x (q + 2 kv) x b", query + 2 * key));
    }
    Variable rotated_q(graph_);
    Variable rotated_k(graph_);
    if (!mla) {
      const OpId rotate = op("rotary embedding", {*inputs});
      rotated_q = graph_.make(rotate, per_token("rotated q", "T x q x b", query));
      rotated_k = graph_.make(rotate, per_token("rotated k", "T x kv x b", key));
    }
    Variable out(graph_, apply("attention output", {*inputs},
                               per_token("attention output", "T x q x b", out_width)));
    previous_piece_end();
    if (mla) {
      mla_kernel(attention, *out);
    } else if (kind_.attention != AttentionRun::kSkipped) {
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
    hidden_ = ffn(layer, normed_again);
    residual_ = *sum;
    piece_inputs_.push_back(*out);
    piece_inputs_.push_back(*residual);
  }

  // The piece that began after the last attention has returned: its inputs go.
  void previous_piece_end() {
    for (const TensorId input : piece_inputs_) {
      graph_.hold_to_here(input);
    }
    piece_inputs_.clear();
  }

  // ---- sampler ----------------------------------------------------------------------------------

  void sample() {
    scope_ = "sampler";
    const std::int64_t vocabulary = model_.vocabulary;
    const bool v2 = deployment_.runner_v2;
    const Bytes unit = Bytes{4} * vocabulary;  // one row in fp32
    std::vector<TensorId> reads;
    if (!hidden_.empty()) {
      reads.push_back(*hidden_);
    }
    Variable last(graph_, apply("gather rows with logits", reads,
                                per_row("last hidden states", "R x H x b", element_ * model_.hidden,
                                        Leaf::kRuntimeActivations)));
    Variable dummy(graph_);
    if (kind_.sampling == Sampling::kProfile && !v2) {
      dummy = apply("rand_like", {*last},
                    per_row("made-up hidden states", "R x H x b", element_ * model_.hidden,
                            Leaf::kRuntimeActivations));
    }
    Variable logits(graph_);
    {
      const std::int64_t shard = align_up(vocabulary, kVocabularyPadding) / deployment_.tp;
      const OpId head = op("lm_head", {*last});
      make_cublas_workspace(head);
      logits = graph_.make(head, per_row(deployment_.tp > 1 ? "logits of this rank" : "logits",
                                         deployment_.tp > 1 ? "R x V/tp x b" : "R x V x b",
                                         element_ * (deployment_.tp > 1 ? shard : vocabulary)));
      if (deployment_.tp > 1) {
        logits =
            apply("all_gather", {*logits}, per_row("logits", "R x V x b", element_ * vocabulary));
      }
    }
    // The second runner of 0.26 and later touches logits only for requests that ask for it.
    const bool as_they_are =
        v2 &&
        ((kind_.sampling == Sampling::kProfile && profile_sampler_units(deployment_) <= 1.0) ||
         (kind_.sampling == Sampling::kGreedy && deployment_.rules.sampler_units_v2 != 1.5));
    if (as_they_are) {
      return;  // 16-bit logits are sampled as they are
    }
    Variable wide(graph_, *logits);
    if (deployment_.dtype != DType::kFloat32 || v2) {
      wide = apply("to fp32", {*logits}, per_row("logits, fp32", "R x V x 4", unit));
    }
    if (kind_.sampling == Sampling::kGreedy) {
      op("argmax", {*wide});
      return;
    }
    if (kind_.sampling == Sampling::kProfile && profile_sampler_units(deployment_) > 6) {
      sort_rows(*wide, unit);
    } else if (kind_.sampling == Sampling::kRandom || profile_sampler_units(deployment_) > 2) {
      draw(*wide, unit, v2);
    } else {
      op("draw", {*wide});
    }
  }

  // Top-k and top-p in place (Triton) or masked into a copy (FlashInfer), then probabilities and
  // exponential noise.
  void draw(TensorId wide, Bytes unit, bool v2) {
    if (v2) {
      Variable masked(graph_, apply("top-k and top-p mask", {wide},
                                    per_row("masked logits", "R x V x 4", unit)));
      make_row_state(*masked);
      Variable probabilities(
          graph_, apply("softmax", {*masked}, per_row("probabilities", "R x V x 4", unit)));
      op("draw", {*probabilities});
      return;
    }
    make_topk_buffer(wide);
    Variable probabilities(graph_,
                           apply("softmax", {wide}, per_row("probabilities", "R x V x 4", unit)));
    Variable noise(graph_, apply("exponential noise", {*probabilities},
                                 per_row("exponential noise", "R x V x 4", unit)));
    op("argmax", {*probabilities, *noise});
  }

  void make_row_state(TensorId beside) {
    if (!kind_.first_run) {
      return;
    }
    constexpr Bytes kRowState{std::int64_t{1} << 20};  // FlashInfer's, kept
    TensorInfo state{"FlashInfer row state", "1 MiB", Leaf::kModelBuffers,
                     Affine::fixed(kRowState)};
    state.kept = true;
    graph_.make(op("row state", {beside}), std::move(state));
  }

  void make_topk_buffer(TensorId beside) {
    const Bytes bytes = sampler_buffer(
        deployment_,
        std::min(deployment_.max_num_seqs, deployment_.max_num_batched_tokens.count()));
    if (!kind_.first_run || bytes == Bytes{0}) {
      return;
    }
    TensorInfo buffer{"top-k/top-p buffer", "min(pow2ceil(min(SM, R)), SM) x V x 4",
                      Leaf::kModelBuffers, Affine::fixed(bytes)};
    buffer.kept = true;
    graph_.make(op("top-k and top-p", {beside}), std::move(buffer));
  }

  // Top-k/top-p by sorting all rows: values and 64-bit indices, and inside the radix sort a reverse
  // index and scratch for keys and values.
  void sort_rows(TensorId wide, Bytes unit) {
    const OpId sort = op("segmented radix sort", {wide});
    const TensorId values = graph_.make(sort, per_row("sorted logits", "R x V x 4", unit));
    const TensorId indices =
        graph_.make(sort, per_row("sort indices, 64 bit", "R x V x 8", unit * 2));
    graph_.make(sort, per_row("reverse index, 64 bit", "R x V x 8", unit * 2));
    graph_.make(sort, per_row("radix sort scratch", "R x V x 12", unit * 3));
    Variable kept_values(graph_, values);
    Variable kept_indices(graph_, indices);
    op("mask", {values, indices, wide});
  }

  const Deployment& deployment_;
  const models::ModelSpec& model_;
  StageRole role_;
  models::LayerRange layers_;
  StepKind kind_;
  LayerStyle style_;
  Bytes element_;
  OpGraph graph_;
  std::string scope_;
  Variable hidden_;
  Variable residual_;
  bool cublas_made_ = false;
  Bytes made_workspace_;
  std::vector<TensorId> piece_inputs_;
  std::vector<TensorId> received_;
};

}  // namespace

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
