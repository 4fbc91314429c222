#include "sim/engines/trtllm/forward.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/kernels/moe.hpp"

namespace oomcast::trtllm {
namespace {

using models::FfnKind;
using models::LayerSpec;
using Tensors = std::vector<opgraph::LiveTensor>;

Bytes sum(const Tensors& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), Bytes{},
                         [](Bytes all, const auto& tensor) { return all + tensor.bytes; });
}

class Moments {
 public:
  Moments(const Deployment& deployment, std::int64_t tokens)
      : deployment_(deployment),
        tokens_(tokens),
        element_(models::bits_of(deployment.dtype) / 8),
        hidden_(deployment.model->hidden) {}

  [[nodiscard]] Tensors feed_forward(const LayerSpec& layer) const {
    Tensors out = stream();
    if (layer.ffn.kind == FfnKind::kMoe) {
      experts(layer.ffn, out);
      dense(layer.ffn.shared_width, layer.ffn.gated, out);
    } else {
      dense(layer.ffn.width, layer.ffn.kind == FfnKind::kGated, out);
    }
    return out;
  }

  [[nodiscard]] Tensors attention(const LayerSpec& layer) const {
    Tensors out = stream();
    const models::AttentionSpec& spec = layer.attention;
    const int tp = deployment_.attention_dp ? 1 : deployment_.tp;
    const bool mla = spec.kind == models::AttentionKind::kMla;
    const std::int64_t query =
        div_ceil(spec.heads, tp) * (mla ? spec.mla.nope_dim + spec.mla.rope_dim : spec.head_dim);
    const std::int64_t keys =
        mla ? 0 : std::max<std::int64_t>(1, spec.kv_heads / tp) * (spec.head_dim + spec.v_head_dim);
    add(out, "qkv", "T x (q + 2 kv) x b", Leaf::kRuntimeIntermediates, query + keys);
    add(out, "attention output", "T x q x b", Leaf::kRuntimeActivations, query);
    return out;
  }

  [[nodiscard]] Tensors logits(std::int64_t rows) const {
    Tensors out;
    const std::int64_t vocabulary = deployment_.model->vocabulary;
    out.push_back({"hidden states", "T x H x b", "", Leaf::kRuntimeActivations,
                   Bytes{detail::checked_mul(tokens_ * element_, hidden_)}});
    out.push_back({"logits", "R x V x 4", "", Leaf::kRuntimeLogits,
                   Bytes{4} * detail::checked_mul(rows, vocabulary)});
    return out;
  }

 private:
  [[nodiscard]] Tensors stream() const {
    Tensors out;
    add(out, "hidden states", "T x H x b", Leaf::kRuntimeActivations, hidden_);
    add(out, "residual", "T x H x b", Leaf::kRuntimeActivations, hidden_);
    add(out, "output", "T x H x b", Leaf::kRuntimeActivations, hidden_);
    return out;
  }

  void add(Tensors& out, const char* name, const char* formula, Leaf leaf,
           std::int64_t width) const {
    if (width > 0) {
      out.push_back(
          {name, formula, "", leaf, Bytes{detail::checked_mul(tokens_ * element_, width)}});
    }
  }

  void dense(std::int64_t width, bool gated, Tensors& out) const {
    const std::int64_t local = div_ceil(width, deployment_.attention_dp ? 1 : deployment_.tp);
    add(out, gated ? "gate_up" : "up", gated ? "T x 2I/tp x b" : "T x I/tp x b",
        Leaf::kRuntimeIntermediates, gated ? 2 * local : local);
    add(out, "activation output", "T x I/tp x b", Leaf::kRuntimeIntermediates, local);
  }

  void experts(const models::FfnSpec& spec, Tensors& out) const {
    kernels::ExpertShape shape;
    const auto arriving = static_cast<std::int64_t>(
        std::ceil(deployment_.exchange.arriving() * static_cast<double>(tokens_)));
    shape.tokens = std::min(arriving, deployment_.moe_tokens.value_or(arriving));
    shape.experts_per_token = spec.experts_per_token;
    shape.experts = spec.experts;
    shape.local_experts = div_ceil(spec.experts, deployment_.ep);
    shape.hidden = hidden_;
    shape.width = div_ceil(spec.expert_width, deployment_.tp / deployment_.ep);
    shape.element_bytes = element_;
    for (const opgraph::TensorInfo& tensor : deployment_.exchange.dispatched(Bytes{element_})) {
      out.push_back(
          {tensor.name, tensor.formula, "", tensor.leaf, tensor.bytes.at({tokens_, 0, 0})});
    }
    out.push_back({"expert workspace", "CUTLASS, each buffer aligned to 128 B", "",
                   Leaf::kWorkspaceMoe,
                   device_bytes(kernels::cutlass_experts(shape, cutlass_type()))});
  }

  [[nodiscard]] kernels::CutlassType cutlass_type() const {
    const auto& quantization = deployment_.model->quantization;
    if (!quantization || !quantization->weight_float) {
      return kernels::CutlassType::kBf16;
    }
    if (quantization->weight_bits == 4) {
      return kernels::CutlassType::kNvfp4;
    }
    return quantization->block_rows > 0 ? kernels::CutlassType::kFp8Block
                                        : kernels::CutlassType::kFp8;
  }

  const Deployment& deployment_;
  std::int64_t tokens_;
  std::int64_t element_;
  std::int64_t hidden_;
};

}  // namespace

Tensors forward_peak(const Deployment& deployment, int stage, std::int64_t tokens,
                     std::int64_t rows) {
  const Moments moments(deployment, tokens);
  Tensors highest;
  const auto offer = [&highest](Tensors tensors) {
    if (sum(tensors) > sum(highest)) {
      highest = std::move(tensors);
    }
  };
  const models::LayerRange layers =
      models::stage_layers(*deployment.model, deployment.shard(stage));
  std::vector<bool> seen(deployment.model->layer_kinds.size());
  for (int i = layers.begin; i < layers.end; ++i) {
    const auto kind = deployment.model->layer_kind[static_cast<std::size_t>(i)];
    if (!seen[kind]) {
      seen[kind] = true;
      offer(moments.feed_forward(deployment.model->layer(i)));
      offer(moments.attention(deployment.model->layer(i)));
    }
  }
  if (rows > 0) {
    offer(moments.logits(rows));
  }
  return highest;
}

}  // namespace oomcast::trtllm
