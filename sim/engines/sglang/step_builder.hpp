// The builder behind step_graph(): one member a piece of SGLang's model code. Internal to this
// folder.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/engines/sglang/step_program.hpp"

namespace oomcast::sglang {

class StepBuilder {
  using Affine = opgraph::Affine;
  using AttentionSpec = models::AttentionSpec;
  using FfnSpec = models::FfnSpec;
  using LayerSpec = models::LayerSpec;
  using OpGraph = opgraph::OpGraph;
  using OpId = opgraph::OpId;
  using ShapeVar = opgraph::ShapeVar;
  using TensorId = opgraph::TensorId;
  using TensorInfo = opgraph::TensorInfo;
  using Variable = opgraph::Variable;

 public:
  StepBuilder(const Deployment& deployment, int stage, StepKind kind);
  StepProgram build();

 private:
  // ---- sizes
  // -------------------------------------------------------------------------------------

  [[nodiscard]] std::int64_t per_attention_rank(std::int64_t size) const {
    return div_ceil(size, deployment_.attention_tp());
  }
  [[nodiscard]] std::int64_t per_rank(std::int64_t size) const {
    return div_ceil(size, deployment_.tp);
  }
  // T x width x b, or in fp32.
  [[nodiscard]] TensorInfo per_token(std::string name, std::string formula, std::int64_t width,
                                     Leaf leaf = Leaf::kRuntimeActivations) const {
    return bytes_per_token(std::move(name), std::move(formula), element_ * width, leaf);
  }
  [[nodiscard]] TensorInfo bytes_per_token(std::string name, std::string formula, Bytes bytes,
                                           Leaf leaf = Leaf::kRuntimeIntermediates) const {
    return {std::move(name), std::move(formula), leaf,
            Affine::per(ShapeVar::kTokens, bytes * gathered_)};
  }

  // ---- small pieces
  // ------------------------------------------------------------------------------

  OpId op(std::string name, const std::vector<TensorId>& reads) {
    on_second_stream_.push_back(second_stream_);
    return graph_.op(std::move(name), scope_, reads);
  }
  TensorId apply(std::string name, const std::vector<TensorId>& reads, TensorInfo out) {
    return graph_.make(op(std::move(name), reads), std::move(out));
  }
  // A linear layer; 8-bit ones quantise their input first.
  TensorId linear(std::string name, TensorId input, std::int64_t in_width, TensorInfo out);
  // The sum over ranks of a row-parallel layer.
  TensorId reduced(TensorId partial, int ranks);
  // Norm over hidden and residual, in place but for the first.
  void add_and_norm(Variable& hidden, Variable& residual, TensorId input);

  // ---- layers
  // ------------------------------------------------------------------------------------

  void plain_layer(const models::LayerSpec& spec);
  void layer(const LayerSpec& spec);
  void own_norm(const LayerSpec& spec, Variable& hidden);
  TensorId attention(const LayerSpec& spec, TensorId input);
  TensorId qkv_attention(const AttentionSpec& attention, bool gated, TensorId input);
  TensorId mla(const AttentionSpec& attention, TensorId input);
  TensorId mla_absorbed(const AttentionSpec& attention, TensorId query, TensorId latent);
  void convert_latents(Variable& converted, const AttentionSpec& attention, TensorId latent);
  TensorId mla_prefill(const AttentionSpec& attention, TensorId query, TensorId latent);
  TensorId recurrent(const AttentionSpec& attention, TensorId input);
  TensorId rotated(TensorId heads, std::int64_t width);
  [[nodiscard]] const std::string& backend() const;  // attention kernels of the step
  [[nodiscard]] bool has_long_rope() const;
  TensorId head_norm(const char* name, TensorId qkv, std::int64_t width);
  // Cosines and sines of this step's positions, for layers without and with a window.
  void angles();
  // The kernel between the pieces, with what it allocates beside its output.
  void attention_kernel(const AttentionSpec& attention, const std::vector<TensorId>& reads);
  [[nodiscard]] std::int64_t splits(const AttentionSpec& attention) const;

  TensorId feed_forward(const LayerSpec& spec, TensorId input);
  TensorId feed_forward_here(const LayerSpec& spec, TensorId input);
  TensorId mlp(std::int64_t width, bool gated, TensorId input);
  TensorId experts(const LayerSpec& spec, TensorId input);
  // Shared experts beside the routed ones; `weighed`: into a tensor of its own.
  TensorId shared_experts(const FfnSpec& ffn, TensorId input, bool weighed);
  // Kernels that activate while they multiply keep no gates.
  [[nodiscard]] bool activates_in_product() const;
  TensorId exchanged(const FfnSpec& ffn, const std::vector<TensorId>& reads);
  void expert_caches(const FfnSpec& ffn, const std::vector<TensorId>& reads, bool fused_shared);

  void per_layer_inputs();
  void draft_pass();
  void keep_hidden();
  void logits();
  // Where the next step, or a graph's user, finds them.
  void leave_logits(TensorId rows);

  const Deployment& deployment_;
  const models::ModelSpec& model_;
  models::LayerRange layers_;
  StepKind kind_;
  ExpertExchange exchange_;
  std::int64_t gathered_ = 1;  // groups of attention whose tokens are here
  Bytes element_;
  bool quantised_inputs_ = false;
  bool native_norms_ = false;
  bool by_parts_ = false;
  bool copied_heads_ = false;
  bool defers_sums_ = false;  // the next norm sums over ranks, when this layer's names are gone
  bool plain_residuals_ = false;
  bool held_inputs_ = false;
  OpGraph graph_;
  std::string scope_;
  Variable embedded_;  // where a name holds it to the end
  Variable hidden_;
  Variable residual_;
  Variable per_layer_;
  std::vector<std::unique_ptr<Variable>> angles_;
  bool cublas_made_ = false;
  bool second_cublas_made_ = false;
  bool second_stream_ = false;  // where ops go now
  std::vector<bool> on_second_stream_;
};

}  // namespace oomcast::sglang
