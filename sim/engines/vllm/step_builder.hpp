// The builder behind step_graph(): one member a piece of vLLM's code. Internal to this folder.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "sim/engines/vllm/layer_style.hpp"
#include "sim/engines/vllm/resident.hpp"
#include "sim/engines/vllm/sparse_mla.hpp"
#include "sim/engines/vllm/step_program.hpp"

namespace oomcast::vllm {

inline constexpr std::int64_t kVocabularyPadding = 64;

// Whether two layers make the same tensors; windows and rope tables make no difference.
bool same_memory(const models::LayerSpec& left, const models::LayerSpec& right);

class StepBuilder {
  using AttentionSpec = models::AttentionSpec;
  using FfnSpec = models::FfnSpec;
  using LayerSpec = models::LayerSpec;
  using Affine = opgraph::Affine;
  using OpGraph = opgraph::OpGraph;
  using OpId = opgraph::OpId;
  using ShapeVar = opgraph::ShapeVar;
  using TensorId = opgraph::TensorId;
  using TensorInfo = opgraph::TensorInfo;
  using Variable = opgraph::Variable;

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
        residual_(graph_),
        embeddings_(graph_),
        made_workspace_(sparse_mla_buffers(deployment)) {}

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
    if (kind_.first_capture) {
      make_static_output();
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
    for (int layer = layers_.begin; layer < layers_.end;) {
      int alike = 1;
      while (layer + alike < layers_.end &&
             same_memory(model_.layer(layer + alike - 1), model_.layer(layer + alike))) {
        ++alike;
      }
      for (int i = 0; i < layers_that_tell(alike); ++i) {
        scope_ = "layer " + std::to_string(layer + i);
        pass(model_.layer(layer + i));
      }
      layer += alike;
    }
  }

  // ---- sizes
  // -------------------------------------------------------------------------------------

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

  // What a compiled sandwich norm adds its terms in.
  [[nodiscard]] TensorInfo sum_in_fp32() const {
    return per_token_bytes("sum in fp32", "T x H x 4", Bytes{4} * model_.hidden,
                           Leaf::kRuntimeIntermediates);
  }

  [[nodiscard]] static TensorInfo per_row(std::string name, std::string formula, Bytes bytes,
                                          Leaf leaf = Leaf::kRuntimeLogits) {
    return {std::move(name), std::move(formula), leaf, Affine::per(ShapeVar::kRows, bytes)};
  }

  // ---- small pieces
  // ------------------------------------------------------------------------------

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

  // A linear layer. FP8 and INT8 ones quantise their input first and multiply with kernels of the
  // engine's own.
  TensorId linear(std::string name, TensorId input, std::int64_t in_width, TensorInfo out) {
    if (!quantises_activations(deployment_)) {
      return linear_as_it_is(std::move(name), input, std::move(out), uses_cublas(deployment_));
    }
    const OpId id = op(std::move(name), {input});
    graph_.make(id, per_token_bytes("quantised input", "T x K", Bytes{in_width},
                                    Leaf::kRuntimeIntermediates));
    return graph_.make(id, std::move(out));
  }

  // The first matrix product of the process makes cuBLAS' workspace, after its result.
  TensorId linear_as_it_is(std::string name, TensorId input, TensorInfo out, bool cublas = true) {
    const OpId id = op(std::move(name), {input});
    const TensorId made = graph_.make(id, std::move(out));
    if (cublas) {
      make_cublas_workspace(id);
    }
    return made;
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

  // ---- forward pass
  // ------------------------------------------------------------------------------

  void first_hidden();
  void pass_layer(const LayerSpec& layer);
  void finish_forward();
  // The second runner copies the graphs' hidden states into one tensor of the largest size.
  void make_static_output();
  // Norm with the residual added: in place, or as two new tensors.
  void add_and_norm(const char* name, Variable& hidden, Variable& residual);
  void eager_layer(const LayerSpec& layer);
  // The attention's result, in `buffer` where this model's layers make it beforehand.
  TensorId attention_into(const LayerSpec& layer, TensorId input, Variable& buffer);

  // ---- attention
  // ---------------------------------------------------------------------------------

  TensorId attention(const LayerSpec& layer, TensorId input);
  TensorId qkv_attention(const LayerSpec& layer, TensorId input);
  void rotate(const AttentionSpec& attention, TensorId qkv, Variable& q, Variable& k);
  void rotate_by_parts(const AttentionSpec& attention, const models::RopeSpec& rope, TensorId qkv,
                       Variable& q, Variable& k);
  void rotate_by_sections(const AttentionSpec& attention, const models::RopeSpec& rope,
                          TensorId qkv, Variable& q, Variable& k);
  // A recurrent layer: what its projections make for each token, and its output.
  TensorId recurrent(const AttentionSpec& attention, TensorId input);
  void warm_up_delta_net(const models::StateSpec& state, TensorId projected);
  // The attention kernel with its output and softmax statistics.
  TensorId attend(const AttentionSpec& attention, const std::vector<TensorId>& reads,
                  std::int64_t width);
  // Where full graphs are captured, FlashAttention 3 keeps its split count fixed for every batch
  // within the captured sizes: fp32 partial outputs and their statistics.
  void make_split_buffers(OpId kernel, const AttentionSpec& attention);
  void attention_beside_graphs(const AttentionSpec& attention);
  TensorId mla(const AttentionSpec& attention, TensorId input);
  void mla_kernel(const AttentionSpec& attention, TensorId out);
  void profiled_sparse_attention(const AttentionSpec& attention, TensorId out);
  void profiled_indexer(OpId id, const AttentionSpec& attention);

  // ---- residual streams
  // ------------------------------------------------------------------------------

  [[nodiscard]] TensorInfo streams(std::string name) const;
  void streams_layer(const LayerSpec& layer);
  void join_streams();
  TensorId compressed_attention(const AttentionSpec& attention, TensorId input);
  void compressed_kernel(const AttentionSpec& attention, const std::vector<TensorId>& reads);
  void choose_entries(TensorId queries);
  void reserve_workspace(OpId id);
  // What all layers share and keep: made by a first run where it is larger than made before.
  void grow_workspace(OpId id, Bytes bytes, TensorInfo info);

  // ---- feed-forward
  // ------------------------------------------------------------------------------

  TensorId ffn(const LayerSpec& layer, TensorId input);
  // Of `width` on this rank. Sums over the ranks inside, while its own variables live, or returns
  // the rank's part.
  TensorId mlp(const FfnSpec& spec, std::int64_t width, TensorId input, bool reduces);
  // Timing a freshly compiled kernel flushes the L2 cache through a buffer of its size.
  void make_timing_buffer(const std::vector<TensorId>& beside);
  // The same for a norm that is compiled by itself: once for each shape of its arguments.
  enum class Norm : std::uint8_t { kHidden, kHiddenAndResidual, kQueries, kKeys };
  void time_norm(Norm norm, TensorId result);
  void time_kernel(const std::vector<TensorId>& beside);
  TensorId moe(const FfnSpec& spec, TensorId input);
  TensorId experts(const FfnSpec& spec, const std::vector<TensorId>& chosen);
  TensorId trtllm_experts(OpId id, const FfnSpec& spec);
  void make_expert_workspace(OpId id, const FfnSpec& spec);
  std::vector<TensorId> dispatched(const std::vector<TensorId>& reads);

  // ---- compiled layer
  // ----------------------------------------------------------------------------

  // torch.compile cuts the model at its attention ops. A piece runs from one attention's output to
  // the next one's inputs; its own inputs (attention output, residual) are held by the caller until
  // it returns.
  void compiled_layer(const LayerSpec& layer);
  void compiled_latents(const AttentionSpec& attention, TensorId input, Variable& queries,
                        Variable& latent, Variable& key);
  [[nodiscard]] bool routes_inside(const FfnSpec& ffn) const;
  // The piece that began after the last attention has returned: its inputs go.
  void previous_piece_end();

  // ---- sampler
  // -----------------------------------------------------------------------------------

  void sample();
  // Top-k and top-p in place (Triton) or masked into a copy (FlashInfer), then probabilities and
  // exponential noise.
  void draw(TensorId wide, Bytes unit, bool v2);
  void draw_from(TensorId wide, Bytes unit);
  void check_made_up_drafts(Variable& logits, Bytes unit, bool sorts);
  void make_row_state(TensorId beside);
  void make_topk_buffer(TensorId beside);
  // Top-k/top-p by sorting all rows: values and 64-bit indices, and inside the radix sort a reverse
  // index and scratch for keys and values.
  void sort_rows(TensorId wide, Bytes unit);

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
  Variable embeddings_;  // where the model's function names them to its end
  bool cublas_made_ = false;
  bool delta_net_ran_ = false;
  std::array<bool, 4> norms_timed_{};
  Bytes made_workspace_;
  bool indexer_ran_ = false;
  std::vector<TensorId> piece_inputs_;
  std::vector<TensorId> received_;
  std::vector<TensorId> normed_copies_;
  bool piece_has_mlp_ = false;  // the piece under way, between two attentions
};

}  // namespace oomcast::vllm
