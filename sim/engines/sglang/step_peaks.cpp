#include "sim/engines/sglang/step_peaks.hpp"

#include <algorithm>

#include "sim/core/error.hpp"

namespace oomcast::sglang {
namespace {

using models::AttentionKind;
using opgraph::Affine;

constexpr std::int64_t kBytesAFloat = 4;
constexpr const char* kSplitsFlag = "triton-attention-num-kv-splits";
constexpr std::int64_t kUsualSplits = 8;

constexpr std::size_t place_of(Leaf leaf) {
  std::size_t place = 0;
  while (kStepLeaves[place] != leaf) {
    ++place;
  }
  return place;
}

Bytes total(const StepSizes& sizes) {
  Bytes sum;
  for (const Bytes bytes : sizes) {
    sum += bytes;
  }
  return sum;
}

}  // namespace

StepPeaks::StepPeaks(const Deployment& deployment, int stage, Tokens pool)
    : deployment_(deployment), stage_(stage), pool_(pool) {
  if (!deployment.decode_sizes.empty()) {
    captured_rows_ = deployment.decode_sizes.back();
  }
  if (!deployment.prefill_sizes.empty()) {
    captured_tokens_ = deployment.prefill_sizes.back();
  }
  const Bytes element{models::bits_of(deployment.dtype) / 8};
  const std::int64_t splits = deployment.decode_backend == "triton"
                                  ? deployment.launch.integer(kSplitsFlag).value_or(kUsualSplits)
                                  : 0;
  for (const models::LayerSpec& layer : deployment.model->layer_kinds) {
    const models::AttentionSpec& attention = layer.attention;
    if (attention.kind == AttentionKind::kNone) {
      continue;
    }
    const bool mla = attention.kind == AttentionKind::kMla;
    const std::int64_t heads = div_ceil(attention.heads, deployment.attention_tp());
    const std::int64_t width = heads * (mla ? attention.mla.v_dim : attention.v_head_dim);
    // Latent attention writes its heads twice (recorded).
    attention_output_ = std::max(attention_output_, element * width * (mla ? 2 : 1));
    attention_statistics_ = std::max(attention_statistics_, Bytes{kBytesAFloat * heads});
    converted_latents_ =
        std::max(converted_latents_,
                 converted_latents(deployment, deployment.prefill_backend, attention, pool));
    attention_partials_ =
        std::max(attention_partials_, Bytes{kBytesAFloat * splits * (width + heads)});
  }
  const std::int64_t vocabulary = deployment.model->vocabulary;
  logits_row_ = Bytes{kBytesAFloat} * vocabulary;
  if (const int ranks = deployment.head_tp(); ranks > 1) {
    gathered_row_ = element * (2 * vocabulary + div_ceil(vocabulary, ranks));
  }
}

bool StepPeaks::replays(const StepLoad& load) const {
  return load.decodes_only ? load.rows <= captured_rows_ : load.tokens.count() <= captured_tokens_;
}

StepSizes StepPeaks::at(const StepLoad& load, const StepLoad& before) const {
  StepSizes sizes{};
  if (!load.decodes_only || !replays(load)) {
    sizes = forward(load);
  }
  // Probabilities, beside the logits where those have no buffer; before that, outside of decode
  // graphs, the logits of all ranks as they come and in the vocabulary's order.
  const Bytes probabilities = logits_row_ * (has_logits_buffer(load) ? 1 : 2);
  const Bytes sampled =
      (load.decodes_only ? probabilities : std::max(probabilities, gathered_row_)) * load.rows;
  // What the forward pass made is gone when tokens are sampled, but for Triton's partial sums.
  Bytes& logits = sizes[place_of(Leaf::kRuntimeLogits)];
  if (sampled >= total(sizes)) {
    sizes = {};
    logits = sampled;
  }
  if (load.decodes_only && !replays(load)) {
    sizes[place_of(Leaf::kWorkspaceAttention)] += attention_partials_ * load.rows;
  }
  if (before.tokens > Tokens{0} && !has_logits_buffer(before)) {
    logits += logits_row_ * before.rows;
  }
  return sizes;
}

StepSizes StepPeaks::forward(const StepLoad& load) const {
  StepSizes sizes{};
  if (replays(load)) {
    sizes[place_of(Leaf::kRuntimeActivations)] = attention_output_ * load.tokens.count();
    sizes[place_of(Leaf::kWorkspaceAttention)] =
        attention_statistics_ * load.tokens.count() + converted_latents_;
    return sizes;
  }
  const opgraph::StepShape shape{load.tokens.count(), load.rows, load.rows};
  const Moment* highest = nullptr;
  Bytes most;
  for (const Moment& moment : eager(load)) {
    const Bytes live = moment.live.at(shape);
    if (highest == nullptr || live > most) {
      highest = &moment;
      most = live;
    }
  }
  if (highest != nullptr) {
    std::transform(highest->by_leaf.begin(), highest->by_leaf.end(), sizes.begin(),
                   [&](const Affine& bytes) { return bytes.at(shape); });
  }
  return sizes;
}

const StepPeaks::Envelope& StepPeaks::eager(const StepLoad& load) const {
  StepKind kind = step_kind(deployment_, load.decodes_only, load.tokens.count());
  kind.pool = pool_;
  const auto known = std::find_if(eager_.begin(), eager_.end(),
                                  [&](const auto& entry) { return entry.first == kind; });
  if (known != eager_.end()) {
    return known->second;
  }
  Envelope envelope;
  const StepProgram step = step_program(deployment_, stage_, kind);
  for (const opgraph::Program::Moment& moment : step.program.envelope()) {
    Moment& own = envelope.emplace_back();
    own.live = moment.live;
    std::transform(kStepLeaves.begin(), kStepLeaves.end(), own.by_leaf.begin(),
                   [&](Leaf leaf) { return moment.by_leaf[oomcast::index_of(leaf)]; });
  }
  eager_.emplace_back(kind, std::move(envelope));
  return eager_.back().second;
}

}  // namespace oomcast::sglang
