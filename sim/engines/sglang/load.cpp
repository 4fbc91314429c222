#include "sim/engines/sglang/load.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "models/attention_kinds.hpp"
#include "models/fp4_conversion.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/sglang/repack.hpp"
#include "sim/engines/startup_card.hpp"

namespace oomcast::sglang {
namespace {

using models::AttentionKind;
using models::DType;
using models::FfnKind;
using models::TensorBytes;

// Divided over an attention group where groups attend on their own; the rest over all ranks.
class Builder {
 public:
  Builder(const Deployment& deployment, int stage) : deployment_(deployment), stage_(stage) {
    for (const models::Tower& tower : deployment.model->towers) {
      for (const models::Tower::Group& group : tower.groups) {
        for (const models::TensorSpec& tensor : group.tensors) {
          tower_names_.insert(tensor.name);
        }
      }
    }
  }

  LoadSequence build() {
    const std::vector<TensorBytes> tensors = rank_tensors();
    const std::vector<int> ropes = rope_order();
    std::size_t next_rope = 0;
    const bool has_rope_tables = !of_architecture(deployment_.rules.rope_tables_missing);
    for (const TensorBytes* one : in_order(tensors)) {
      const TensorBytes& tensor = *one;
      if (tensor.suffix == ".absorbed") {
        continue;  // made afterwards, in two parts
      }
      if (tensor.name.starts_with("layers.") && of_tower(tensor)) {
        add_tower_table();
      }
      if (tensor.rope_table != models::RopeTable::kNone && has_rope_tables) {
        const int rope = next_rope < ropes.size() ? ropes[next_rope] : -1;
        ++next_rope;
        add_rope_table(tensor, rope);
      } else if (tensor.rope_table == models::RopeTable::kNone) {
        if (fused_shared(tensor)) {
          continue;
        }
        const Bytes bytes = created_bytes(tensor) + fused_into(tensor, tensors);
        if (bytes == Bytes{0}) {
          continue;  // made by a kernel's own layout
        }
        created_.push_back({add(bytes, ledger_leaf(tensor.leaf)), &tensor, bytes});
        if (const Bytes unused = unused_zero_points(deployment_, tensor); unused > Bytes{0}) {
          created_.back().unused = add(unused, Leaf::kModelScales);
        }
        TensorBytes made = tensor;
        made.bytes = bytes;  // with shared experts that are fused
        if (const Bytes size = reordered_scales(deployment_, stage_, made); size > Bytes{0}) {
          const std::uint32_t padded = add(size, Leaf::kRuntimeIntermediates);
          const std::uint32_t copy = add(size, Leaf::kModelScales);
          free(padded);
          created_.back().reordered = size;
          if (reorders_scales(deployment_)) {
            created_.back().unused = copy;
          }
        }
      }
    }
    if (deployment_.dummy_weights) {
      initialise_dummies();
    }
    quantise_online(tensors);
    absorb_mla();
    repack_weights(deployment_, stage_, tape_, created_);
    swizzle_experts(tensors);
    widen_experts();
    out_.steps = tape_.take();
    return std::move(out_);
  }

 private:
  using Created = LoadedTensor;

  std::uint32_t add(Bytes bytes, Leaf leaf) { return tape_.add(bytes, leaf); }
  void free(std::uint32_t tensor) { tape_.free(tensor); }

  // Online quantisation happens after loading: the tensors are created in 16 bits.
  [[nodiscard]] std::vector<TensorBytes> rank_tensors() const {
    models::ShardPlan whole = deployment_.shard(stage_);
    online_ = !whole.online_quantization.empty();
    whole.online_quantization.clear();
    std::vector<TensorBytes> tensors = models::weights_on_rank(*deployment_.model, whole).tensors;
    if (of_architecture(deployment_.rules.tower_mlp_whole)) {
      undivide_tower_mlps(tensors, whole);
    }
    if (of_architecture(deployment_.rules.fp32_routers)) {
      for (TensorBytes& tensor : tensors) {
        if (tensor.name == "mlp.gate.weight" && tensor.dtype != DType::kFloat32) {
          tensor.bytes = tensor.bytes * 2;
          tensor.dtype = DType::kFloat32;
        }
      }
    }
    if (whole.indexer.key_in_16_bits) {
      join_indexer_keys(tensors);
    }
    return tensors;
  }

  void undivide_tower_mlps(std::vector<TensorBytes>& tensors, models::ShardPlan plan) const {
    plan.whole_vision = plan.whole_audio = true;
    const std::vector<TensorBytes> undivided =
        models::weights_on_rank(*deployment_.model, plan).tensors;
    OOMCAST_CHECK(undivided.size() == tensors.size(), "towers of {} and {} tensors",
                  undivided.size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string_view name = tensors[i].name;
      if (of_tower(tensors[i]) &&
          (name.starts_with("layers.mlp.") || name.starts_with("merger."))) {
        tensors[i].bytes = undivided[i].bytes;
      }
    }
  }

  // One matrix of both projections.
  static void join_indexer_keys(std::vector<TensorBytes>& tensors) {
    TensorBytes* keys = nullptr;
    for (TensorBytes& tensor : tensors) {
      if (tensor.name == "self_attn.indexer.wk.weight") {
        keys = &tensor;
      } else if (tensor.name == "self_attn.indexer.weights_proj.weight" && keys != nullptr) {
        keys->bytes += std::exchange(tensor.bytes, Bytes{0});
      }
    }
  }

  // Quantised experts have both weights made before the scales (create_weights of each method);
  // only MXFP4 goes matrix by matrix.
  [[nodiscard]] std::vector<const TensorBytes*> in_order(
      const std::vector<TensorBytes>& tensors) const {
    std::vector<const TensorBytes*> out;
    out.reserve(tensors.size());
    for (const TensorBytes& tensor : tensors) {
      out.push_back(&tensor);
    }
    order_towers(out);
    order_indexers(out);
    const auto& quantization = deployment_.model->quantization;
    if (!quantization || quantization->method == "mxfp4") {
      return out;
    }
    const auto of_experts = [](const TensorBytes* tensor) {
      return tensor->name.find("experts.w") != std::string_view::npos;
    };
    for (auto first = out.begin(); first != out.end();) {
      first = std::find_if(first, out.end(), of_experts);
      const auto end = std::find_if(first, out.end(), [&](const TensorBytes* tensor) {
        return !of_experts(tensor) || tensor->layer != (*first)->layer;
      });
      std::stable_partition(first, end,
                            [](const TensorBytes* tensor) { return tensor->suffix.empty(); });
      first = end;
    }
    return out;
  }

  // Projector, language model, encoder.
  void order_towers(std::vector<const TensorBytes*>& tensors) const {
    if (!of_architecture(deployment_.rules.towers_last)) {
      return;
    }
    const auto rest =
        std::stable_partition(tensors.begin(), tensors.end(), [this](const TensorBytes* tensor) {
          return of_tower(*tensor) && tensor->name.starts_with("multi_modal_projector");
        });
    std::stable_partition(rest, tensors.end(),
                          [this](const TensorBytes* tensor) { return !of_tower(*tensor); });
  }

  // An indexer is made once the queries' projections are there, before keys and values
  // (models/deepseek_v2.py).
  static void order_indexers(std::vector<const TensorBytes*>& tensors) {
    for (auto first = tensors.begin(); first != tensors.end();) {
      const int layer = (*first)->layer;
      const auto end = std::find_if(
          first, tensors.end(), [&](const TensorBytes* tensor) { return tensor->layer != layer; });
      const auto behind = std::find_if(first, end, [](const TensorBytes* tensor) {
        return tensor->name == "self_attn.kv_a_layernorm.weight";
      });
      std::stable_partition(behind, end, [](const TensorBytes* tensor) {
        return tensor->name.starts_with("self_attn.indexer.");
      });
      first = end;
    }
  }

  // Rope tables in the order in which layers first use them.
  [[nodiscard]] std::vector<int> rope_order() const {
    std::vector<int> order;
    const models::LayerRange range =
        models::stage_layers(*deployment_.model, deployment_.shard(stage_));
    for (int i = range.begin; i < range.end; ++i) {
      for (const models::TensorSpec& tensor : deployment_.model->layer(i).tensors) {
        if (tensor.rope >= 0 && std::find(order.begin(), order.end(), tensor.rope) == order.end()) {
          order.push_back(tensor.rope);
        }
      }
    }
    return order;
  }

  [[nodiscard]] bool of_architecture(const std::vector<std::string>& architectures) const {
    return models::named(architectures, *deployment_.model);
  }

  [[nodiscard]] bool of_tower(const TensorBytes& tensor) const {
    return tensor.layer < 0 && tower_names_.count(tensor.name) > 0;
  }

  // An encoder's own, of half the head's width: 8192 positions, before its first layer.
  void add_tower_table() {
    constexpr std::int64_t kRows = 8192;
    if (tower_table_ || !of_architecture(deployment_.rules.tower_rope_tables)) {
      return;
    }
    tower_table_ = true;
    for (const models::Tower& tower : deployment_.model->towers) {
      for (const models::Tower::Group& group : tower.groups) {
        for (const models::TensorSpec& tensor : group.tensors) {
          if (tensor.name == "layers.attn.qkv.weight") {
            add_table(kRows, tensor.rows.at(0).size / 2, false, Leaf::kModelBuffers);
            return;
          }
        }
      }
    }
  }

  void add_rope_table(const TensorBytes& tensor, int rope) {
    const Leaf leaf = ledger_leaf(tensor.leaf);
    if (rope < 0) {
      add(tensor.bytes, leaf);
      return;
    }
    const models::RopeSpec& spec = deployment_.model->ropes.at(static_cast<std::size_t>(rope));
    // Positions of a video run ahead elsewhere: tables are no longer than the text's.
    std::int64_t rows =
        spec.multimodal ? spec.table_rows / models::kMultimodalRopeFactor : spec.table_rows;
    if (of_architecture(deployment_.rules.rope_tables_unscaled)) {
      rows = spec.max_position;
    }
    add_table(rows, spec.rotary_dim, spec.type == "yarn" || spec.type == "deepseek_yarn", leaf);
  }

  // YaRN multiplies cosines and sines by a factor (`scaled`), each into a tensor of its own.
  void add_table(std::int64_t rows, std::int64_t columns, bool scaled, Leaf leaf) {
    const std::int64_t element =
        deployment_.rules.fp32_rope_tables ? 4 : models::bits_of(deployment_.dtype) / 8;
    const Bytes half{detail::checked_mul(rows, columns) * 4 / 2};
    const std::uint32_t positions = add(Bytes{rows} * 4, leaf);
    const std::uint32_t angles = add(half, leaf);
    const std::uint32_t cosines = scaled_table(half, leaf, scaled);
    const std::uint32_t sines = scaled_table(half, leaf, scaled);
    const std::uint32_t both = add(half * 2, leaf);
    free(sines);
    free(cosines);
    free(angles);
    free(positions);
    out_.tables.push_back({both, rows, columns, element});
  }

  std::uint32_t scaled_table(Bytes bytes, Leaf leaf, bool scaled) {
    const std::uint32_t plain = add(bytes, leaf);
    if (!scaled) {
      return plain;
    }
    const std::uint32_t table = add(bytes, leaf);
    free(plain);
    return table;
  }

  // Random values of 8-bit floats are drawn in 16 bits and converted; one name holds both, so that
  // the last values go when the next are drawn (weight_utils.py initialize_dummy_weights).
  void initialise_dummies() {
    std::optional<std::uint32_t> values;
    for (const Created& created : created_) {
      if (created.source->dtype != DType::kFloat8) {
        continue;
      }
      const std::uint32_t drawn = add(created.bytes * 2, Leaf::kRuntimeIntermediates);
      if (values) {
        free(*values);
      }
      values = add(created.bytes, Leaf::kRuntimeIntermediates);
      free(drawn);
    }
    if (values) {
      free(*values);
    }
  }

  // Each linear layer in turn: its 8-bit copy, then the original goes.
  void quantise_online(const std::vector<TensorBytes>& tensors) {
    if (!online_) {
      return;
    }
    models::ShardPlan plan = deployment_.shard(stage_);
    const std::vector<TensorBytes> quantised =
        models::weights_on_rank(*deployment_.model, plan).tensors;
    std::size_t at = 0;
    std::pair<std::uint32_t, Bytes> first_expert_matrix;
    for (const TensorBytes& tensor : quantised) {
      const bool scale = tensor.dtype != DType::kFloat8 && !tensor.suffix.empty();
      if (scale) {
        add(tensor.bytes, ledger_leaf(tensor.leaf));
        continue;
      }
      while (at < tensors.size() && tensors[at].rope_table != models::RopeTable::kNone) {
        ++at;
      }
      if (tensor.rope_table != models::RopeTable::kNone) {
        continue;
      }
      const auto own = std::find_if(created_.begin(), created_.end(), [&](const Created& one) {
        return one.source->name == tensor.name && one.source->layer == tensor.layer &&
               one.source->suffix == tensor.suffix;
      });
      if (tensor.dtype != DType::kFloat8 || own == created_.end()) {
        continue;
      }
      const Bytes bytes = tensor.bytes + fused_into(tensor, quantised);
      add(bytes, Leaf::kModelWeights);
      if (tensor.name == "mlp.experts.w13.weight") {
        first_expert_matrix = {own->tensor, bytes};
      } else if (tensor.name == "mlp.experts.w2.weight") {
        quantise_experts(tensor.layer, first_expert_matrix, {own->tensor, bytes});
      } else {
        free(own->tensor);
      }
    }
  }

  // Both copies of a layer's experts are there before the originals go; each expert is converted
  // in a tensor of its own.
  void quantise_experts(int layer, const std::pair<std::uint32_t, Bytes>& first,
                        const std::pair<std::uint32_t, Bytes>& second) {
    const std::int64_t experts =
        std::max<std::int64_t>(1, deployment_.model->layer(layer).ffn.experts / deployment_.ep);
    for (const Bytes bytes : {first.second, second.second}) {
      free(add(Bytes{bytes.count() / experts}, Leaf::kRuntimeIntermediates));
    }
    free(first.first);
    free(second.first);
  }

  // kv_b_proj apart for keys and values, in 16 bits, beside the original.
  void absorb_mla() {
    if (deployment_.dummy_weights && of_architecture(deployment_.rules.absorbed_on_reading)) {
      return;
    }
    const models::LayerRange range =
        models::stage_layers(*deployment_.model, deployment_.shard(stage_));
    const std::int64_t element = models::bits_of(deployment_.dtype) / 8;
    for (int i = range.begin; i < range.end; ++i) {
      const models::AttentionSpec& attention = deployment_.model->layer(i).attention;
      if (attention.kind != AttentionKind::kMla) {
        continue;
      }
      const std::int64_t heads = div_ceil(attention.heads, deployment_.attention_tp());
      const std::int64_t latent = detail::checked_mul(heads, attention.mla.kv_lora_rank) * element;
      const Bytes keys = Bytes{latent} * attention.mla.nope_dim;
      const Bytes values = Bytes{latent} * attention.mla.v_dim;
      add(keys, Leaf::kModelWeights);
      add(values, Leaf::kModelWeights);
    }
  }

  // Shared experts that are one more routed expert lie in the routed ones' tensors.
  [[nodiscard]] bool fused_shared(const TensorBytes& tensor) const {
    return tensor.layer >= 0 && tensor.layer < deployment_.model->layer_count() &&
           tensor.name.starts_with("mlp.shared_experts.") &&
           deployment_.fuses_shared_experts(deployment_.model->layer(tensor.layer));
  }

  [[nodiscard]] Bytes fused_into(const TensorBytes& tensor,
                                 const std::vector<TensorBytes>& tensors) const {
    const std::string_view own =
        tensor.name == "mlp.experts.w13.weight"  ? "mlp.shared_experts.gate_up_proj.weight"
        : tensor.name == "mlp.experts.w2.weight" ? "mlp.shared_experts.down_proj.weight"
                                                 : "";
    if (own.empty()) {
      return Bytes{0};
    }
    const auto shared = std::find_if(tensors.begin(), tensors.end(), [&](const TensorBytes& one) {
      return one.layer == tensor.layer && one.name == own && one.suffix == tensor.suffix &&
             fused_shared(one);
    });
    return shared == tensors.end() ? Bytes{0} : shared->bytes;
  }

  // DeepSeek V3's shared expert may be loaded once for every rank.
  [[nodiscard]] Bytes created_bytes(const TensorBytes& tensor) const {
    const Bytes bytes = tensor.created.value_or(tensor.bytes);
    const bool shared = tensor.name.starts_with("mlp.shared_experts.");
    return shared ? bytes * deployment_.shared_expert_copies : bytes;
  }

  // ---- MXFP4 experts in the layout of Triton's kernels

  struct Sink {
    Builder& builder;
    std::uint32_t allocate(Bytes bytes, models::WeightLeaf leaf) const {
      return builder.add(bytes, ledger_leaf(leaf));
    }
    void free(std::uint32_t tensor) const { builder.free(tensor); }
  };

  // Layer by layer: biases in fp32, both matrices with their scales, then the originals of both and
  // the cache go; scales as loaded stay.
  void swizzle_experts(const std::vector<TensorBytes>& tensors) {
    const auto& swizzle = deployment_.shard(stage_).fp4_experts.swizzle;
    for (std::size_t first = 0; first < tensors.size();) {
      std::size_t end = first + 1;
      while (end < tensors.size() && tensors[end].layer == tensors[first].layer) {
        ++end;
      }
      const std::vector<const TensorBytes*> replaced = replaced_tensors(tensors, first, end);
      if (swizzle && !replaced.empty()) {
        swizzle_layer(replaced, *swizzle);
        tape_.empty_cache();
      }
      first = end;
    }
  }

  // Both matrices of a layer in 16 bits, then the originals, their scales and the cache go.
  void widen_experts() {
    if (!deployment_.widens_fp4_experts()) {
      return;
    }
    constexpr std::int64_t kTimes = 4;
    std::vector<std::uint32_t> replaced;
    for (std::size_t i = 0; i < created_.size(); ++i) {
      const TensorBytes& source = *created_[i].source;
      const bool matrix = source.dtype == DType::kFloat4;
      if (matrix) {
        add(created_[i].bytes * kTimes, ledger_leaf(source.leaf));
      }
      if (matrix || (!source.suffix.empty() && !replaced.empty())) {
        replaced.push_back(created_[i].tensor);
      }
      if (i + 1 == created_.size() || created_[i + 1].source->layer != source.layer) {
        for (const std::uint32_t tensor : replaced) {
          free(tensor);
        }
        if (!replaced.empty()) {
          tape_.empty_cache();
        }
        replaced.clear();
      }
    }
  }

  static std::vector<const TensorBytes*> replaced_tensors(const std::vector<TensorBytes>& tensors,
                                                          std::size_t first, std::size_t end) {
    std::vector<const TensorBytes*> out;
    for (std::size_t i = first; i < end; ++i) {
      if (tensors[i].created) {
        out.push_back(&tensors[i]);
      }
    }
    return out;
  }

  void free_original(const TensorBytes& tensor) {
    for (const Created& one : created_) {
      if (one.source == &tensor) {
        free(one.tensor);
      }
    }
  }

  void swizzle_layer(const std::vector<const TensorBytes*>& tensors,
                     const models::Fp4Experts::Swizzle& swizzle) {
    Sink sink{*this};
    models::Fp4Conversion<Sink> conversion(swizzle, sink);
    for (const TensorBytes* tensor : tensors) {
      if (tensor->dtype == DType::kFloat32) {
        add(tensor->bytes, ledger_leaf(tensor->leaf));
      }
    }
    for (const TensorBytes* tensor : tensors) {
      if (tensor->dtype == DType::kFloat32) {
        free_original(*tensor);
      }
    }
    for (std::size_t i = 0; i + 1 < tensors.size(); ++i) {
      if (tensors[i]->dtype == DType::kFloat4) {
        conversion.convert(*tensors[i], *tensors[i + 1]);
      }
    }
    for (const TensorBytes* tensor : tensors) {
      if (tensor->dtype != DType::kFloat32) {
        free_original(*tensor);
      }
    }
  }

  const Deployment& deployment_;
  int stage_ = 0;
  std::set<std::string_view> tower_names_;
  bool tower_table_ = false;
  mutable bool online_ = false;
  LoadSequence out_;
  std::vector<Created> created_;
  LoadTape tape_;
};

}  // namespace

LoadSequence expert_locations(const Deployment& deployment) {
  LoadSequence out;
  if (!models::named(deployment.rules.expert_locations, *deployment.model) ||
      !models::has_experts(*deployment.model)) {
    return out;
  }
  std::int64_t experts = 0;
  for (const models::LayerSpec& layer : deployment.model->layer_kinds) {
    experts = std::max(experts, layer.ffn.experts);
  }
  const std::int64_t layers = deployment.model->layer_count();
  const Bytes map = Bytes{8} * detail::checked_mul(layers, experts) * experts;
  const Bytes list = Bytes{8} * detail::checked_mul(layers, experts);
  std::uint32_t next = 0;
  const auto add = [&](Bytes bytes, Leaf leaf) {
    out.steps.push_back({LoadStep::Kind::kAllocate, next++, bytes, leaf});
  };
  add(list, Leaf::kModelBuffers);         // physical to logical
  add(map, Leaf::kModelBuffers);          // logical to physical
  add(map, Leaf::kRuntimeIntermediates);  // while it is filled
  add(Bytes{map.count() / 8}, Leaf::kRuntimeIntermediates);
  add(map, Leaf::kRuntimeIntermediates);
  add(list, Leaf::kModelBuffers);  // copies of each
  for (const std::uint32_t temporary : {2U, 3U, 4U}) {
    out.steps.push_back({LoadStep::Kind::kFree, temporary, {}, Leaf::kModelBuffers});
  }
  return out;
}

LoadSequence load_sequence(const Deployment& deployment, int stage) {
  return Builder(deployment, stage).build();
}

LoadSequence draft_sequence(const Deployment& deployment, int stage) {
  LoadSequence out;
  if (!deployment.loads_draft(stage)) {
    return out;
  }
  models::ShardPlan plan = deployment.shard(stage);
  plan.draft = true;
  const bool keeps_ends = models::named(deployment.rules.drafts_keep_ends, *deployment.model);
  std::uint32_t next = 0;
  for (const TensorBytes& tensor : models::weights_on_rank(*deployment.model, plan).tensors) {
    const bool end = tensor.layer < 0 &&
                     (tensor.name == "embed_tokens.weight" || tensor.name == "lm_head.weight");
    if ((tensor.layer >= deployment.model->layer_count() || end) &&
        tensor.rope_table == models::RopeTable::kNone) {
      if (end && !keeps_ends) {
        out.dropped.push_back(next);
      }
      out.steps.push_back(
          {LoadStep::Kind::kAllocate, next++, tensor.bytes, ledger_leaf(tensor.leaf)});
    }
  }
  return out;
}

std::int64_t rope_rows_needed(const Deployment& deployment) {
  constexpr std::int64_t kMargin = 256;
  constexpr std::int64_t kStep = 128;
  constexpr std::int64_t kDraftFactor = 2;
  std::int64_t ahead = 0;
  if (deployment.speculation) {
    ahead = kDraftFactor * detail::checked_mul(deployment.speculation->steps,
                                               deployment.speculation->draft_tokens);
  }
  return align_up(deployment.max_model_len.count() + ahead + kMargin, kStep);
}

}  // namespace oomcast::sglang
