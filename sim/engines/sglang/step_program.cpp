#include "sim/engines/sglang/step_program.hpp"

#include <algorithm>
#include <cstdlib>

#include "models/attention_kinds.hpp"
#include "sim/engines/sglang/step_builder.hpp"

namespace oomcast::sglang {

using models::AttentionKind;
using models::FfnKind;
using models::LayerSpec;
using opgraph::Affine;
using opgraph::OpId;
using opgraph::ShapeVar;
using opgraph::TensorId;
using opgraph::TensorInfo;
using opgraph::Variable;

namespace {

// A run of more alike layers than this repeats what the layers before did to memory.
constexpr int kMostAlikeLayers = 5;

bool quantises_inputs(const models::ModelSpec& model, const launch::Launch& launch) {
  if (launch.text("quantization") == std::optional<std::string>("fp8")) {
    return true;
  }
  const auto& quantization = model.quantization;
  return quantization && quantization->weight_bits == 8 && quantization->format != "pack-quantized";
}

// Rows that the configuration tuned for the nearest batch may add to each expert's part.
std::int64_t padding_at(const ExpertPadding& row, std::int64_t tokens) {
  const auto nearest = std::min_element(
      row.blocks.begin(), row.blocks.end(), [tokens](const auto& left, const auto& right) {
        return std::abs(left.first - tokens) < std::abs(right.first - tokens);
      });
  return nearest == row.blocks.end() || nearest->second == 0 ? 0 : nearest->second - 1;
}

}  // namespace

Bytes converted_latents(const Deployment& deployment, const std::string& backend,
                        const models::AttentionSpec& attention, Tokens pool) {
  const std::int64_t bits = models::bits_of(deployment.dtype);
  if (attention.kind != AttentionKind::kMla || pool == Tokens{0} ||
      models::bits_of(deployment.kv_dtype) == bits ||
      (backend != "fa3" && backend != "flashinfer")) {
    return Bytes{0};
  }
  const models::MlaSpec& sizes = attention.mla;
  return Bytes{(pool + deployment.page_size).count()} *
         ((sizes.kv_lora_rank + sizes.rope_dim) * bits / 8);
}

StepKind step_kind(const Deployment& deployment, bool decode, std::int64_t tokens) {
  StepKind kind;
  kind.decode = decode;
  const std::int64_t row =
      detail::checked_mul(deployment.model->hidden, models::bits_of(deployment.dtype) / 8);
  kind.sums_allocate = Bytes{detail::checked_mul(tokens, row)} <= kCustomSum;
  for (const LayerSpec& layer : deployment.model->layer_kinds) {
    if (layer.ffn.kind != FfnKind::kMoe) {
      continue;
    }
    const std::int64_t width = layer.ffn.expert_width / (deployment.ep > 1 ? 1 : deployment.tp);
    const std::int64_t stored =
        layer.ffn.experts + (deployment.fuses_shared_experts(layer) ? 1 : 0);
    const auto& quantization = deployment.model->quantization;
    const bool fp8 = quantization && quantization->block_rows > 0;
    for (const ExpertPadding& row_of : deployment.rules.expert_padding) {
      if (row_of.experts == stored && row_of.width == width &&
          deployment.gpu.name.starts_with(row_of.card) && row_of.fp8 == fp8 &&
          (fp8 || !quantization)) {
        kind.expert_padding = padding_at(row_of, tokens);
      }
    }
  }
  return kind;
}

StepBuilder::StepBuilder(const Deployment& deployment, int stage, StepKind kind)
    : deployment_(deployment),
      model_(*deployment.model),
      layers_(models::stage_layers(*deployment.model, deployment.shard(stage))),
      kind_(kind),
      exchange_(deployment.exchange_in(kind.decode)),
      element_(Bytes{models::bits_of(deployment.dtype) / 8}),
      quantised_inputs_(quantises_inputs(*deployment.model, deployment.launch)),
      native_norms_(models::named(deployment.rules.native_head_norms, *deployment.model)),
      by_parts_(models::named(deployment.rules.delta_net_by_parts, *deployment.model)),
      copied_heads_(models::named(deployment.rules.copied_heads, *deployment.model)),
      defers_sums_(kind.sums_allocate && deployment.tp > 1 &&
                   models::named(deployment.rules.deferred_sums, *deployment.model)),
      plain_residuals_(models::named(deployment.rules.plain_residuals, *deployment.model)),
      held_inputs_(models::named(deployment.rules.held_inputs, *deployment.model)),
      embedded_(graph_),
      hidden_(graph_),
      residual_(graph_),
      per_layer_(graph_) {}

StepProgram StepBuilder::build() {
  for (std::int64_t pass = 0; pass < kind_.draft_passes; ++pass) {
    draft_pass();
  }
  if (kind_.draft_passes > 0) {
    return {opgraph::Program(std::move(graph_)), std::move(on_second_stream_)};
  }
  scope_ = "embedding";
  // Captured prefills of models with towers start from embeddings in a buffer of the runner.
  const bool embedded = kind_.captured && !kind_.decode && !model_.towers.empty();
  hidden_ =
      apply("embed", {}, per_token("hidden states", "T x H x b", embedded ? 0 : model_.hidden));
  if (!embedded) {
    const TensorId whole = reduced(*hidden_, deployment_.attention_tp());
    hidden_ = whole;
  }
  if (native_norms_) {
    const TensorId scaled = apply("times sqrt(H)", {*hidden_},
                                  per_token("scaled embeddings", "T x H x b", model_.hidden));
    hidden_ = scaled;
    angles();
  }
  per_layer_inputs();
  const LayerSpec* previous = nullptr;
  int alike = 0;
  for (int i = layers_.begin; i < layers_.end; ++i) {
    const LayerSpec& spec = model_.layer(i);
    alike = previous == &spec ? alike + 1 : 1;
    previous = &spec;
    if (alike <= kMostAlikeLayers) {
      scope_ = "layer " + std::to_string(i);
      layer(spec);
    }
  }
  scope_ = "output";
  per_layer_.drop();
  if (defers_sums_) {
    const TensorId whole = reduced(*hidden_, deployment_.tp);
    hidden_ = whole;
  }
  op("norm", {*hidden_});
  angles_.clear();
  keep_hidden();
  if (kind_.decode) {
    logits();
  }
  hidden_.drop();
  embedded_.drop();
  residual_.drop();
  return {opgraph::Program(std::move(graph_)), std::move(on_second_stream_)};
}

// The embedding of the last token beside the hidden state before it, projected to one; the draft's
// layers; logits (deepseek_nextn.py, glm4_moe_nextn.py, qwen3_next_mtp.py).
void StepBuilder::draft_pass() {
  const auto whole = [&](const char* name) { return per_token(name, "T x H x b", model_.hidden); };
  scope_ = "draft";
  hidden_ = apply("embed", {}, whole("hidden states"));
  hidden_ = reduced(*hidden_, deployment_.attention_tp());
  {
    const Variable token(graph_, apply("enorm", {*hidden_}, whole("normed embedding")));
    const Variable before(graph_, apply("hnorm", {*hidden_}, whole("normed hidden states")));
    const Variable both(graph_, apply("concatenate", {*token, *before},
                                      per_token("both", "T x 2H x b", 2 * model_.hidden)));
    hidden_ = linear("eh_proj", *both, 2 * model_.hidden, whole("draft's input"));
  }
  layer(model_.draft_layers.front());
  if (defers_sums_) {
    const TensorId sum = reduced(*hidden_, deployment_.tp);
    hidden_ = sum;
  }
  op("norm", {*hidden_});
  keep_hidden();
  logits();
  hidden_.drop();
  residual_.drop();
}

void StepBuilder::keep_hidden() {
  if (kind_.keeps_hidden_of > 0) {
    TensorInfo kept =
        bytes_per_token("hidden states for the draft", "T x H x b",
                        Bytes{(element_ * model_.hidden).count() / kind_.keeps_hidden_of});
    kept.kept = true;
    apply("keep for the draft", {*hidden_}, std::move(kept));
  }
}

// A head that all ranks divide works on the tokens of every attention group; each takes its own
// rows of the logits back (logits_processor.py _gather_dp_attn_hidden_states,
// _scatter_dp_attn_logits).
void StepBuilder::logits() {
  const int ranks = deployment_.head_tp();
  Variable all(graph_);
  if (deployment_.attention_dp > 1 && ranks == deployment_.tp) {
    gathered_ = deployment_.attention_dp;
    all =
        apply("gather", {*hidden_}, per_token("gathered tokens", "dp x T x H x b", model_.hidden));
  }
  const OpId head = op("lm_head", {all.empty() ? *hidden_ : *all});
  const std::int64_t own = div_ceil(align_up(model_.vocabulary, 64), ranks);
  TensorId rows = graph_.make(head, per_token("logits", "B x V/tp x b", own, Leaf::kRuntimeLogits));
  if (ranks == 1) {
    leave_logits(rows);
    return;
  }
  const auto whole = [&](const char* name) {
    return per_token(name, "B x V x b", own * ranks, Leaf::kRuntimeLogits);
  };
  Variable partial(graph_, rows);
  Variable gathered(graph_, apply("all_gather", {rows}, whole("logits, rank by rank")));
  rows = apply("transpose", {*gathered}, whole("logits of all ranks"));
  if (!all.empty()) {
    const Variable of_all_groups(graph_, rows);
    gathered.drop();
    partial.drop();
    gathered_ = 1;
    rows = apply("scatter", {rows}, whole("own logits"));
  }
  leave_logits(rows);
}

void StepBuilder::leave_logits(TensorId rows) {
  if (deployment_.rules.logits_buffer) {
    op("copy to the logits buffer", {rows});
    return;
  }
  constexpr Bytes kFloat{4};
  TensorInfo own = bytes_per_token("logits, fp32", "B x V x 4", kFloat * model_.vocabulary,
                                   Leaf::kRuntimeLogits);
  own.kept = kind_.keeps_logits;
  apply("to fp32", {rows}, std::move(own));
}

// Embeddings that every layer has for itself (Gemma 3n and 4): looked up, projected and added up
// before the first layer, and held to the last.
void StepBuilder::per_layer_inputs() {
  for (const models::TensorSpec& tensor : model_.before) {
    if (tensor.name != "embed_tokens_per_layer.weight") {
      continue;
    }
    const std::int64_t width = tensor.columns.units * tensor.columns.size;
    const auto all = [&](const char* name) { return per_token(name, "T x L x width x b", width); };
    const Variable looked_up(graph_, apply("embed per layer", {}, all("per-layer embeddings")));
    const Variable projected(graph_,
                             apply("project per layer", {*hidden_}, all("per-layer projections")));
    per_layer_ = apply("add per layer", {*looked_up, *projected}, all("per-layer inputs"));
    return;
  }
}

void StepBuilder::angles() {
  constexpr std::int64_t kFloat = 4;
  constexpr int kRopes = 2;
  const std::int64_t dim = model_.layer(layers_.begin).attention.head_dim;
  const auto wide = [&](const char* name, std::int64_t width) {
    return bytes_per_token(name, "T x d x 4", Bytes{kFloat} * width, Leaf::kRuntimeActivations);
  };
  for (int i = 0; i < kRopes; ++i) {
    const Variable half(graph_, apply("angles", {}, wide("half of the angles", dim / 2)));
    const Variable all(graph_, apply("angles twice", {*half}, wide("angles", dim)));
    Variable cosines(graph_, apply("cos", {*all}, wide("cosines", dim)));
    Variable sines(graph_, apply("sin", {*all}, wide("sines", dim)));
    cosines = apply("scale", {*cosines}, wide("scaled cosines", dim));
    sines = apply("scale", {*sines}, wide("scaled sines", dim));
    for (const Variable* table : {&cosines, &sines}) {
      angles_.push_back(std::make_unique<Variable>(
          graph_, apply("to the model's dtype", {**table}, per_token("angles", "T x d x b", dim))));
    }
  }
}

TensorId StepBuilder::linear(std::string name, TensorId input, std::int64_t in_width,
                             TensorInfo out) {
  const OpId id = op(std::move(name), {input});
  bool& made = second_stream_ ? second_cublas_made_ : cublas_made_;
  if (kind_.first_on_stream && !made && !quantised_inputs_) {
    made = true;
    TensorInfo workspace{"cuBLAS workspace", "by GPU generation", Leaf::kWorkspaceGemm,
                         Affine::fixed(deployment_.cublas_workspace)};
    workspace.kept = true;
    graph_.make(id, std::move(workspace));
  }
  if (quantised_inputs_) {
    graph_.make(id, bytes_per_token("quantised input", "T x K", Bytes{in_width}));
    graph_.make(
        id, bytes_per_token("input scales", "T x K / 128 x 4", Bytes{4} * div_ceil(in_width, 128)));
  }
  return graph_.make(id, std::move(out));
}

TensorId StepBuilder::reduced(TensorId partial, int ranks) {
  if (ranks == 1 || !kind_.sums_allocate) {
    return partial;
  }
  return apply("all_reduce", {partial}, per_token("sum over ranks", "T x H x b", model_.hidden));
}

void StepBuilder::add_and_norm(Variable& hidden, Variable& residual, TensorId input) {
  if (residual.empty()) {
    residual = graph_.view(op("residual", {input}), input, "residual");
    hidden = apply("norm", {input}, per_token("normed", "T x H x b", model_.hidden));
    return;
  }
  const OpId norm = op("add and norm", {input, *residual});
  hidden = graph_.view(norm, input, "normed");
}

// Of a sublayer's output, before it is added to the residual.
void StepBuilder::own_norm(const LayerSpec& spec, Variable& hidden) {
  const bool of_outputs =
      std::any_of(spec.tensors.begin(), spec.tensors.end(), [](const auto& tensor) {
        return tensor.name == "post_mlp_layernorm.weight" ||
               tensor.name == "post_feedforward_layernorm.weight";
      });
  if (of_outputs) {
    hidden = apply("norm of the output", {*hidden},
                   per_token("normed output", "T x H x b", model_.hidden));
  }
}

// Norms and sums with the residual are operators of their own, names are used again (ChatGLM).
void StepBuilder::plain_layer(const LayerSpec& spec) {
  const auto whole = [&](const char* name) { return per_token(name, "T x H x b", model_.hidden); };
  if (embedded_.empty()) {
    embedded_ = *hidden_;
  }
  Variable normed(graph_, apply("norm", {*hidden_}, whole("normed")));
  const Variable attended(graph_, attention(spec, *normed));
  const Variable sum(graph_, apply("add", {*hidden_, *attended}, whole("sum")));
  normed = apply("norm", {*sum}, whole("normed"));
  Variable out(graph_, feed_forward(spec, *normed));
  out = apply("add", {*out, *sum}, whole("hidden states"));
  hidden_ = *out;
}

void StepBuilder::layer(const LayerSpec& spec) {
  if (plain_residuals_) {
    plain_layer(spec);
    return;
  }
  Variable hidden(graph_);
  Variable residual(graph_);
  if (!residual_.empty()) {
    residual = *residual_;
  }
  TensorId input = *hidden_;
  if (defers_sums_ && !residual.empty()) {
    input = reduced(input, deployment_.tp);
  }
  add_and_norm(hidden, residual, input);
  // On one rank the loop over the layers holds what it passed in until the layer returns; sums over
  // ranks leave their result elsewhere.
  if (deployment_.tp > 1 && !defers_sums_) {
    hidden_.drop();
  }
  Variable held(graph_);
  if (held_inputs_) {
    held = *hidden;
  }
  if (spec.attention.kind != AttentionKind::kNone) {
    hidden = attention(spec, *hidden);
    if (defers_sums_) {
      hidden = reduced(*hidden, deployment_.attention_tp());
    }
    own_norm(spec, hidden);
    if (spec.ffn.kind != FfnKind::kNone) {
      op("add and norm", {*hidden, *residual});
    }
  }
  if (spec.ffn.kind != FfnKind::kNone) {
    hidden = feed_forward(spec, *hidden);
    own_norm(spec, hidden);
  }
  hidden_ = *hidden;
  residual_ = *residual;
}

StepProgram step_program(const Deployment& deployment, int stage, StepKind kind) {
  return StepBuilder(deployment, stage, kind).build();
}

}  // namespace oomcast::sglang
