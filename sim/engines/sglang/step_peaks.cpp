#include "sim/engines/sglang/step_peaks.hpp"

#include <algorithm>

#include "sim/core/error.hpp"

namespace oomcast::sglang {
namespace {

using models::AttentionKind;
using opgraph::Affine;

constexpr std::int64_t kFloat = 4;
// PyTorch's own sampler sorts: values, 64-bit indices, their running sum, beside the
// probabilities.
constexpr std::int64_t kSorted = 4 + 4 + 8 + 4;

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

StepPeaks::StepPeaks(const Deployment& deployment, int stage)
    : deployment_(deployment), stage_(stage) {
  if (!deployment.decode_sizes.empty()) {
    captured_rows_ = deployment.decode_sizes.back();
  }
  if (!deployment.prefill_sizes.empty()) {
    captured_tokens_ = deployment.prefill_sizes.back();
  }
  const Bytes element{models::bits_of(deployment.dtype) / 8};
  for (const models::LayerSpec& layer : deployment.model->layer_kinds) {
    const models::AttentionSpec& attention = layer.attention;
    if (attention.kind == AttentionKind::kNone) {
      continue;
    }
    const std::int64_t heads = div_ceil(attention.heads, deployment.attention_tp());
    const std::int64_t width =
        attention.kind == AttentionKind::kMla ? attention.mla.v_dim : attention.v_head_dim;
    attention_output_ = std::max(attention_output_, element * heads * width);
    attention_statistics_ = std::max(attention_statistics_, Bytes{kFloat * heads});
  }
  const std::int64_t vocabulary = deployment.model->vocabulary;
  const std::int64_t sampling = deployment.flashinfer_sampling ? kFloat : kSorted;
  logits_row_ = Bytes{kFloat} * vocabulary;
  logits_row_replayed_ = Bytes{sampling} * vocabulary;
  if (deployment.tp > 1) {
    // Own part, gathered rank by rank, and in order of the vocabulary.
    const Bytes gathered = element * (2 * vocabulary + div_ceil(vocabulary, deployment.tp));
    logits_row_replayed_ = std::max(logits_row_replayed_, gathered);
  }
  logits_row_eager_ = logits_row_ + Bytes{sampling} * vocabulary;
  logits_row_before_ = deployment.overlap ? logits_row_ : Bytes{0};
}

bool StepPeaks::replays(const StepLoad& load) const {
  return load.decodes_only ? load.rows <= captured_rows_ : load.tokens.count() <= captured_tokens_;
}

StepSizes StepPeaks::at(const StepLoad& load) const {
  const Bytes rows = logits(load);
  StepSizes sizes{};
  if (!load.decodes_only || !replays(load)) {
    sizes = forward(load);
  }
  // The highest of the two: what the forward pass made is gone when tokens are sampled.
  if (rows >= total(sizes)) {
    sizes = {};
    sizes[place_of(Leaf::kRuntimeLogits)] = rows;
  } else if (load.decodes_only && !has_logits_buffer(load.rows)) {
    sizes[place_of(Leaf::kRuntimeLogits)] += logits_row_before_ * load.rows;
  }
  return sizes;
}

Bytes StepPeaks::logits(const StepLoad& load) const {
  if (has_logits_buffer(load.rows)) {
    return logits_row_replayed_ * load.rows;
  }
  const Bytes row = logits_row_eager_ + (load.decodes_only ? logits_row_before_ : Bytes{0});
  return row * load.rows;
}

StepSizes StepPeaks::forward(const StepLoad& load) const {
  StepSizes sizes{};
  if (replays(load)) {
    sizes[place_of(Leaf::kRuntimeActivations)] = attention_output_ * load.tokens.count();
    sizes[place_of(Leaf::kWorkspaceAttention)] = attention_statistics_ * load.tokens.count();
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
  const StepKind kind = step_kind(deployment_, load.decodes_only, load.tokens.count());
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
