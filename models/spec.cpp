#include "models/spec.hpp"

namespace oomcast::models {
namespace {

std::int64_t elements_of(const TensorSpec& tensor) {
  Bytes rows;  // checked arithmetic
  for (const Extent& extent : tensor.rows) {
    if (extent.stored) {
      rows += Bytes{extent.units} * extent.size;
    }
  }
  return (rows * (tensor.columns.units * tensor.columns.size) *
          (tensor.experts.units * tensor.experts.size))
      .count();
}

std::int64_t parameters_in(const std::vector<TensorSpec>& tensors, Component component) {
  Bytes sum;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.parameter && tensor.component == component) {
      sum += Bytes{elements_of(tensor)};
    }
  }
  return sum.count();
}

}  // namespace

std::string_view name_of(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kNone:
      return "none";
    case AttentionKind::kFull:
      return "full";
    case AttentionKind::kSlidingWindow:
      return "sliding window";
    case AttentionKind::kChunked:
      return "chunked";
    case AttentionKind::kMla:
      return "MLA";
    case AttentionKind::kCrossAttention:
      return "cross attention";
    case AttentionKind::kMamba1:
      return "Mamba";
    case AttentionKind::kMamba2:
      return "Mamba 2";
    case AttentionKind::kGatedDeltaNet:
      return "gated delta net";
    case AttentionKind::kKimiDelta:
      return "Kimi delta attention";
    case AttentionKind::kLightning:
      return "lightning attention";
    case AttentionKind::kCompressed:
      return "compressed";
  }
  return "";
}

std::string to_string(const Assumption& assumption) {
  return assumption.key + " = " + assumption.value + ": " + assumption.reason;
}

std::int64_t parameter_count(const ModelSpec& spec, Component component) {
  std::vector<std::int64_t> layers_of_kind(spec.layer_kinds.size(), 0);
  for (const std::uint16_t kind : spec.layer_kind) {
    ++layers_of_kind[kind];
  }
  Bytes sum =
      Bytes{parameters_in(spec.before, component)} + Bytes{parameters_in(spec.after, component)};
  for (std::size_t kind = 0; kind < spec.layer_kinds.size(); ++kind) {
    sum += Bytes{parameters_in(spec.layer_kinds[kind].tensors, component)} * layers_of_kind[kind];
  }
  for (const LayerSpec& layer : spec.draft_layers) {
    sum += Bytes{parameters_in(layer.tensors, component)};
  }
  for (const Tower& tower : spec.towers) {
    for (const Tower::Group& group : tower.groups) {
      sum += Bytes{parameters_in(group.tensors, component)} * group.count;
    }
  }
  return sum.count();
}

}  // namespace oomcast::models
