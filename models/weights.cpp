#include "models/weights.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/data.hpp"
#include "models/quantization.hpp"
#include "sim/core/error.hpp"

namespace oomcast::models {
namespace {

constexpr std::int64_t kVocabularyPadding = 64;
constexpr std::string_view kHeadWeight = "lm_head.weight";
constexpr std::string_view kZeros = "_zeros";
constexpr std::string_view kIndexerKey = "self_attn.indexer.wk.weight";

DType dtype_of(Element element, DType model_dtype) {
  switch (element) {
    case Element::kModel:
      return model_dtype;
    case Element::kFloat32:
      return DType::kFloat32;
    case Element::kInt64:
      return DType::kInt64;
    case Element::kInt32:
      return DType::kInt32;
    case Element::kInt8:
      return DType::kInt8;
  }
  return model_dtype;
}

// Ranks that divide a tensor of this name.
int ranks_dividing(std::string_view name, const ShardPlan& plan) {
  if (name.starts_with("self_attn.") || name.starts_with("linear_attn.") ||
      name.starts_with("embed_tokens")) {
    return plan.attention_tp.value_or(plan.tp);
  }
  if (name.starts_with("lm_head")) {
    return plan.head_tp.value_or(plan.tp);
  }
  const bool dense = name.starts_with("mlp.") && !name.starts_with("mlp.experts") &&
                     !name.starts_with("mlp.shared_expert");
  return dense ? plan.dense_tp.value_or(plan.tp) : plan.tp;
}

// Elements of one extent on one rank; check_sharding() has made sure that it divides.
std::int64_t on_rank(const Extent& extent, const ShardPlan& plan, int tp) {
  if (extent.unused && !plan.unused_kv) {
    return 0;
  }
  std::int64_t units = extent.units;
  switch (extent.split) {
    case Split::kWhole:
      break;
    case Split::kEven:
      units /= tp;
      break;
    case Split::kKvHeads:
      units = std::max<std::int64_t>(1, units / tp);
      break;
    case Split::kVocabulary:
      units = align_up(units, kVocabularyPadding) / tp;
      break;
    case Split::kExperts:
      units = (units + plan.redundant_experts) / plan.ep;
      break;
    case Split::kExpertWidth:
      units /= plan.ep > 1 ? 1 : plan.expert_tp.value_or(plan.tp);
      break;
    case Split::kSharedWidth:
      units /= plan.whole_shared_experts ? 1 : tp;
      break;
    case Split::kWhereItDivides:
      units /= units % tp == 0 ? tp : 1;
      break;
    case Split::kStepTokens:
      units *= plan.step_tokens;
      break;
    case Split::kChoiceRows:
      units *= plan.indexer.choice_rows;
      break;
  }
  return units * extent.size;
}

std::int64_t rows_on_rank(const TensorSpec& tensor, const ShardPlan& plan, int tp) {
  std::int64_t rows = 0;
  for (const Extent& extent : tensor.rows) {
    rows += on_rank(extent, plan, tp);
  }
  return rows;
}

bool on_stage(Place place, const ShardPlan& plan) {
  const bool first = plan.pp_rank == 0;
  const bool last = plan.pp_rank == plan.pp - 1;
  switch (place) {
    case Place::kFirstStage:
      return first;
    case Place::kLastStage:
      return last;
    case Place::kFirstAndLastStage:
      return first || last;
    case Place::kEveryStage:
      return true;
  }
  return false;
}

// Gathers one rank's tensors.
class RankBuilder {
 public:
  RankBuilder(const ModelSpec& spec, const ShardPlan& plan)
      : spec_(spec),
        plan_(plan),
        dtype_(plan.dtype.value_or(spec.dtype)),
        rope_made_(spec.ropes.size(), false) {
    out_.swizzle = plan.fp4_experts.swizzle;
    if (spec.quantization) {
      if (!spec.quantization->rest_in_16_bits) {
        scheme_ = scheme_of(*spec.quantization);
      }
      for (const Quantization& other : spec.quantization->others) {
        other_schemes_.push_back(scheme_of(other));
      }
    } else if (!plan.online_quantization.empty()) {
      scheme_ = online_scheme(plan.online_quantization);
    }
  }

  // `index`: position among its layer kind's tensors.
  void add(const TensorSpec& tensor, int layer, std::size_t index) {
    if (!tensor.loaded) {
      return;
    }
    add_matrix(tensor, layer, index);
    if (plan_.lora && layer >= 0 && tensor.quantisable && !tensor.copied_in_16_bits) {
      add_lora(*plan_.lora, tensor, layer);
    }
  }

  void add_matrix(const TensorSpec& tensor, int layer, std::size_t index) {
    if (tensor.rope >= 0) {
      // A table exists once per rank, however many layers use it.
      auto made = rope_made_.begin() + tensor.rope;
      if (*made) {
        return;
      }
      *made = true;
      add_rope(tensor, layer);
      return;
    }
    if (const QuantScheme* scheme = scheme_for(tensor, layer, index)) {
      add_quantised(*scheme, tensor, layer);
      return;
    }
    if (fp4_experts() && !tensor.quantisable && tensor.experts.split == Split::kExperts) {
      add_fp4_bias(tensor, layer);
      return;
    }
    const DType dtype = dtype_of(tensor.element, dtype_);
    const int tp = ranks_of(tensor);
    const std::int64_t elements =
        (Bytes{rows_on_rank(tensor, plan_, tp)} * on_rank(tensor.columns, plan_, tp) *
         on_rank(tensor.experts, plan_, tp))
            .count();
    if (elements > 0) {
      push({tensor.name, {}, layer, tensor.leaf, dtype, bytes_of(dtype, elements)});
    }
  }

  void add(const LayerSpec& layer, int number) {
    for (std::size_t t = 0; t < layer.tensors.size(); ++t) {
      add(layer.tensors[t], number, t);
    }
  }

  void add(const Tower& tower) {
    whole_ = tower.component == Component::kAudio ? plan_.whole_audio : plan_.whole_vision;
    for (const Tower::Group& group : tower.groups) {
      for (std::int64_t i = 0; i < group.count; ++i) {
        for (const TensorSpec& tensor : group.tensors) {
          add(tensor, -1, 0);
        }
      }
    }
    whole_ = false;
  }

  // Slots of embedding and head: down of the vocabulary and up to the hidden size, or the other
  // way round.
  void add_lora_ends(bool first, bool last) {
    if (!plan_.lora || !plan_.lora->embeddings) {
      return;
    }
    const LoraSlots& lora = *plan_.lora;
    const auto slots = [&](std::string_view name, std::string_view suffix, std::int64_t width) {
      const std::int64_t elements = (Bytes{lora.slots} * lora.rank * width).count();
      push({name, suffix, -1, WeightLeaf::kWeights, lora.dtype, bytes_of(lora.dtype, elements)});
    };
    const bool again = last && lora.tied_embedding_twice && spec_.tie_word_embeddings;
    for (int made = 0; made < (first ? 1 : 0) + (again ? 1 : 0); ++made) {
      slots("embed_tokens.weight", ".lora_a", spec_.vocabulary);
      slots("embed_tokens.weight", ".lora_b", spec_.hidden);
    }
    if (last) {
      slots(kHeadWeight, ".lora_a", spec_.hidden);
      slots(kHeadWeight, ".lora_b", spec_.vocabulary);
    }
  }

  RankWeights take() { return std::move(out_); }

 private:
  int ranks_of(const TensorSpec& tensor) const {
    return whole_ ? 1 : ranks_dividing(tensor.name, plan_);
  }
  static bool has_bit(const std::vector<std::uint64_t>& bits, int layer, std::size_t index) {
    return ((bits.at(static_cast<std::size_t>(layer)) >> index) & 1U) != 0;
  }

  // Null: the tensor stays as it is.
  [[nodiscard]] const QuantScheme* scheme_for(const TensorSpec& tensor, int layer,
                                              std::size_t index) const {
    const auto& quantization = spec_.quantization;
    if (quantization && quantization->head >= 0 && tensor.name == kHeadWeight) {
      return &other_schemes_.at(static_cast<std::size_t>(quantization->head));
    }
    if (!tensor.quantisable || (plan_.indexer.key_in_16_bits && tensor.name == kIndexerKey)) {
      return nullptr;
    }
    if (quantization && layer >= 0) {
      if (has_bit(quantization->kept, layer, index)) {
        return nullptr;
      }
      for (std::size_t i = 0; i < other_schemes_.size(); ++i) {
        if (has_bit(quantization->others[i].uses, layer, index)) {
          return &other_schemes_[i];
        }
      }
    }
    return scheme_ ? &*scheme_ : nullptr;
  }

  void add_quantised(const QuantScheme& scheme, const TensorSpec& tensor, int layer) {
    LinearShape shape;
    const int tp = ranks_of(tensor);
    for (const Extent& extent : tensor.rows) {
      if (const std::int64_t rows = on_rank(extent, plan_, tp); rows > 0) {
        shape.parts.push_back(rows);
      }
    }
    shape.columns = on_rank(tensor.columns, plan_, tp);
    shape.experts = on_rank(tensor.experts, plan_, tp);
    if (scheme.kind == QuantScheme::Kind::kMxfp4 && shape.experts > 1) {
      add_fp4_experts(scheme, tensor, layer, std::move(shape));
      return;
    }
    const bool converted = plan_.converts_awq && plan_.compute_major == 9 &&
                           scheme.kind == QuantScheme::Kind::kInt4Group && scheme.zero_points &&
                           scheme.weight_bits == 4 && shape.experts == 1;
    for (const QuantTensor& part :
         quantised_tensors(scheme, shape, dtype_, plan_.compute_major == 9)) {
      TensorBytes made{tensor.name, part.suffix, layer,
                       part.leaf,   part.dtype,  bytes_of(part.dtype, part.elements)};
      if (converted) {
        made.created = part.suffix == kZeros ? bytes_of(DType::kInt4, part.elements) : made.bytes;
      }
      made.experts = shape.experts;
      push(made);
    }
    if (tensor.copied_in_16_bits) {
      const std::int64_t elements =
          (Bytes{rows_on_rank(tensor, plan_, tp)} * shape.columns).count();
      push({tensor.name, ".absorbed", layer, WeightLeaf::kWeights, dtype_,
            bytes_of(dtype_, elements)});
    }
  }

  void add_lora(const LoraSlots& lora, const TensorSpec& tensor, int layer) {
    const int tp = ranks_of(tensor);
    const std::int64_t columns = on_rank(tensor.columns, plan_, tp);
    const std::int64_t experts = on_rank(tensor.experts, plan_, tp);
    const bool columns_divided = tensor.columns.split != Split::kWhole;
    Bytes down;
    for (const Extent& extent : tensor.rows) {
      if (on_rank(extent, plan_, tp) > 0) {
        down += Bytes{lora.rank} * columns;
      }
    }
    Bytes up = Bytes{rows_on_rank(tensor, plan_, tp)} * lora.rank;
    if (lora.fully_sharded) {
      Bytes& whole = columns_divided ? up : down;
      whole = Bytes{div_ceil(whole.count(), tp)};
    }
    for (const auto& [suffix, one] : {std::pair{".lora_a", down}, std::pair{".lora_b", up}}) {
      const std::int64_t elements = (one * experts * lora.slots).count();
      push({tensor.name, suffix, layer, WeightLeaf::kWeights, lora.dtype,
            bytes_of(lora.dtype, elements)});
    }
  }

  // Experts in 4 bits, whatever the rest is in.
  [[nodiscard]] bool fp4_experts() const {
    return std::any_of(other_schemes_.begin(), other_schemes_.end(), [](const QuantScheme& scheme) {
      return scheme.kind == QuantScheme::Kind::kMxfp4;
    });
  }
  [[nodiscard]] std::int64_t padded(const Extent& extent, std::int64_t elements) const {
    const Fp4Experts& kernel = plan_.fp4_experts;
    return align_up(elements, extent.split == Split::kExpertWidth ? kernel.width_multiple
                                                                  : kernel.hidden_multiple);
  }

  void add_fp4_bias(const TensorSpec& tensor, int layer) {
    Bytes rows;
    for (const Extent& extent : tensor.rows) {
      rows += Bytes{padded(extent, on_rank(extent, plan_, plan_.tp))};
    }
    const std::int64_t elements = (rows * on_rank(tensor.experts, plan_, plan_.tp)).count();
    const DType dtype = plan_.fp4_experts.fp32_bias ? DType::kFloat32 : dtype_;
    TensorBytes bias{tensor.name, {}, layer, tensor.leaf, dtype, bytes_of(dtype, elements)};
    if (dtype != dtype_) {
      bias.created = bytes_of(dtype_, elements);
    }
    push(bias);
  }

  void add_fp4_experts(const QuantScheme& scheme, const TensorSpec& tensor, int layer,
                       LinearShape shape) {
    std::size_t i = 0;
    for (std::int64_t& part : shape.parts) {
      part = padded(tensor.rows.at(i++), part);
    }
    shape.columns = padded(tensor.columns, shape.columns);
    const std::vector<QuantTensor> created =
        quantised_tensors(scheme, shape, dtype_, plan_.compute_major == 9);
    const auto& swizzle = plan_.fp4_experts.swizzle;
    if (!swizzle) {
      for (const QuantTensor& part : created) {
        push({tensor.name, part.suffix, layer, part.leaf, part.dtype,
              bytes_of(part.dtype, part.elements)});
      }
      return;
    }
    constexpr std::int64_t kPerScale = 32;
    const Bytes rows{std::accumulate(shape.parts.begin(), shape.parts.end(), std::int64_t{0})};
    const std::int64_t scale_columns =
        align_up(div_ceil(shape.columns, kPerScale), swizzle->scale_columns);
    const auto stored = [&](std::int64_t row_multiple, std::int64_t columns) {
      return (Bytes{align_up(rows.count(), row_multiple)} * columns * shape.experts).count();
    };
    const QuantTensor& value = created.at(0);
    const QuantTensor& scale = created.at(1);
    push({.name = tensor.name,
          .layer = layer,
          .leaf = value.leaf,
          .dtype = value.dtype,
          .bytes = bytes_of(value.dtype, stored(swizzle->value_rows,
                                                align_up(shape.columns, swizzle->value_columns))),
          .created = bytes_of(value.dtype, value.elements)});
    const Bytes as_loaded = bytes_of(scale.dtype, scale.elements);
    if (swizzle->keeps_scales) {
      push({tensor.name, scale.suffix, layer, scale.leaf, scale.dtype, as_loaded});
    }
    push({.name = tensor.name,
          .suffix = swizzle->keeps_scales ? "_scale_swizzled" : scale.suffix,
          .layer = layer,
          .leaf = scale.leaf,
          .dtype = scale.dtype,
          .bytes = bytes_of(scale.dtype, stored(swizzle->scale_rows, scale_columns)),
          .created = swizzle->keeps_scales ? Bytes{0} : as_loaded,
          .whole_tiles = bytes_of(scale.dtype, stored(1, scale_columns))});
  }

  void add_rope(const TensorSpec& tensor, int layer) {
    const RopeSpec& rope = spec_.ropes.at(static_cast<std::size_t>(tensor.rope));
    if (plan_.transformers_backend) {
      const Bytes frequencies = bytes_of(DType::kFloat32, rope.rotary_dim / 2);
      for (const std::string_view name : {"rotary_emb.inv_freq", "rotary_emb.original_inv_freq"}) {
        push({name, {}, -1, WeightLeaf::kBuffers, DType::kFloat32, frequencies});
      }
      return;
    }
    if (rope.of_indexer && !plan_.indexer.own_rope) {
      return;  // the attention's table serves it
    }
    const bool in_fp32 = rope.fp32_table || (rope.deepseek_yarn && plan_.flashinfer_ropes);
    const DType dtype = in_fp32 ? DType::kFloat32 : dtype_;
    const std::int64_t rows =
        rope.interleaved ? rope.table_rows / kMultimodalRopeFactor * plan_.interleaved_rope_factor
                         : rope.table_rows;
    const Bytes bytes = bytes_of(dtype, rows * rope.rotary_dim);
    TensorBytes table{.name = tensor.name,
                      .layer = layer,
                      .leaf = tensor.leaf,
                      .dtype = dtype,
                      .bytes = bytes,
                      .rope_table = RopeTable::kPlain};
    if (rope.type == "yarn" || rope.type == "deepseek_yarn") {
      table.rope_table = RopeTable::kScaled;
    } else if (rope.type == "longrope") {
      table.rope_table = RopeTable::kTwo;
      table.short_table = bytes_of(dtype, (rows - rope.max_position) * rope.rotary_dim);
    }
    if (rope.fp32_table && !rope.deepseek_yarn) {
      table.used_as = dtype_;
    }
    push(table);
  }

  void push(TensorBytes tensor) {
    if (spec_.checkpoint && tensor.leaf != WeightLeaf::kBuffers) {
      tensor.bytes = scaled(tensor.bytes, *spec_.checkpoint);
    }
    if (tensor.layer >= 0 && tensor.leaf != WeightLeaf::kBuffers &&
        out_.on_host < plan_.host_weights) {
      tensor.on_host = true;
      out_.on_host += tensor.bytes;
      out_.tensors.push_back(tensor);
      return;
    }
    out_.tensors.push_back(tensor);
    switch (tensor.leaf) {
      case WeightLeaf::kWeights:
        out_.weights += tensor.bytes;
        break;
      case WeightLeaf::kScales:
        out_.scales += tensor.bytes;
        break;
      case WeightLeaf::kBuffers:
        out_.buffers += tensor.bytes;
        break;
    }
  }

  // Which tensors are larger or smaller than thought is not known, so all are.
  static Bytes scaled(Bytes bytes, const CheckpointSize& checkpoint) {
    const double ratio = static_cast<double>(checkpoint.stored.count()) /
                         static_cast<double>(checkpoint.computed.count());
    return Bytes{std::llround(static_cast<double>(bytes.count()) * ratio)};
  }

  const ModelSpec& spec_;
  const ShardPlan& plan_;
  bool whole_ = false;  // the tower under way is not divided
  DType dtype_;
  std::vector<bool> rope_made_;
  std::optional<QuantScheme> scheme_;
  std::vector<QuantScheme> other_schemes_;
  RankWeights out_;
};

// Collects, once per distinct pair, what does not divide.
class DivisionCheck {
 public:
  DivisionCheck(const ShardPlan& plan, Problems& problems) : plan_(plan), problems_(problems) {}

  void check(const TensorSpec& tensor) {
    for (const Extent& extent : tensor.rows) {
      check(extent, tensor.name);
    }
    check(tensor.columns, tensor.name);
    check(tensor.experts, tensor.name);
  }

  void check(const LayerSpec& layer) {
    check_heads(layer.attention.heads);
    for (const AttentionSpec& attention : layer.beside) {
      check_heads(attention.heads);
    }
    for (const TensorSpec& tensor : layer.tensors) {
      check(tensor);
    }
  }

 private:
  void check_heads(std::int64_t heads) {
    const int tp = plan_.attention_tp.value_or(plan_.tp);
    if (heads % tp != 0) {
      complain("--tensor-parallel-size", tp,
               fmt::format("a divisor of the {} attention heads", heads));
    }
  }

  void check(const Extent& extent, std::string_view name) {
    const std::int64_t units = extent.units;
    const int tp = ranks_dividing(name, plan_);
    switch (extent.split) {
      case Split::kWhole:
      case Split::kWhereItDivides:
      case Split::kStepTokens:
      case Split::kChoiceRows:
        break;
      case Split::kExpertWidth:
        if (plan_.ep > 1) {
          break;
        }
        if (const int ranks = plan_.expert_tp.value_or(plan_.tp);
            ranks != plan_.tp && units % ranks != 0) {
          complain("--data-parallel-size", ranks / plan_.tp,
                   fmt::format("ranks of all replicas, {}, that divide the {} parts of {}", ranks,
                               units, name));
          break;
        }
        check_even(units, tp, name);
        break;
      case Split::kSharedWidth:
        if (!plan_.whole_shared_experts) {
          check_even(units, tp, name);
        }
        break;
      case Split::kEven:
        check_even(units, tp, name);
        break;
      case Split::kKvHeads:
        if (tp > units ? tp % units != 0 : units % tp != 0) {
          complain("--tensor-parallel-size", tp,
                   fmt::format("a divisor or a multiple of the {} KV heads", units));
        }
        break;
      case Split::kVocabulary:
        if (align_up(units, kVocabularyPadding) % tp != 0) {
          complain("--tensor-parallel-size", tp,
                   fmt::format("a divisor of the vocabulary padded to {}",
                               align_up(units, kVocabularyPadding)));
        }
        break;
      case Split::kExperts:
        if ((units + plan_.redundant_experts) % plan_.ep != 0) {
          const std::int64_t experts = units + plan_.redundant_experts;
          complain("expert-parallel ranks", plan_.ep,
                   fmt::format("a divisor of the {} experts{}", experts,
                               plan_.redundant_experts > 0 ? ", copies included" : ""),
                   fmt::format("with {} redundant experts they would divide",
                               align_up(experts, std::int64_t{plan_.ep}) - units));
        }
        break;
    }
  }

  void check_even(std::int64_t units, int tp, std::string_view name) {
    if (units % tp != 0) {
      complain("--tensor-parallel-size", tp,
               fmt::format("a divisor of the {} parts of {}", units, name));
    }
  }

  void complain(std::string_view place, std::int64_t value, const std::string& expected,
                std::string hint = {}) {
    const bool known =
        std::any_of(problems_.found().begin(), problems_.found().end(),
                    [&](const Problem& problem) { return problem.expected == expected; });
    if (!known) {
      problems_.add(
          {"launch line", std::string(place), std::to_string(value), expected, std::move(hint)});
    }
  }

  const ShardPlan& plan_;
  Problems& problems_;
};

void check_plan(const ShardPlan& plan) {
  Problems problems;
  const auto at_least_one = [&](std::string_view flag, int value) {
    if (value < 1) {
      problems.add({"launch line", std::string(flag), std::to_string(value), "at least 1", ""});
    }
  };
  at_least_one("--tensor-parallel-size", plan.tp);
  at_least_one("ranks of attention", plan.attention_tp.value_or(1));
  at_least_one("ranks of dense layers", plan.dense_tp.value_or(1));
  at_least_one("ranks of the head", plan.head_tp.value_or(1));
  at_least_one("--pipeline-parallel-size", plan.pp);
  at_least_one("expert-parallel ranks", plan.ep);
  OOMCAST_CHECK(plan.step_tokens >= 0, "{} tokens a step", plan.step_tokens);
  problems.raise_if_any();
  OOMCAST_CHECK(plan.pp_rank >= 0 && plan.pp_rank < plan.pp, "stage {} of {}", plan.pp_rank,
                plan.pp);
}

}  // namespace

LayerRange stage_layers(const ModelSpec& spec, const ShardPlan& plan) {
  check_plan(plan);
  const int layers = spec.layer_count();
  if (plan.pp > layers) {
    throw ConfigError(Problem{"launch line", "--pipeline-parallel-size", std::to_string(plan.pp),
                              fmt::format("at most the {} layers", layers), ""});
  }
  std::vector<int> counts = plan.layers_per_stage;
  if (counts.empty()) {
    counts.assign(static_cast<std::size_t>(plan.pp), layers / plan.pp);
    // The remainder goes to the stages before the last one, from the back (the last one holds the
    // head); vLLM distributed/utils.py get_pp_indices.
    for (int i = 0; i < layers % plan.pp; ++i) {
      ++counts[static_cast<std::size_t>(plan.pp - 2 - i)];
    }
  }
  int sum = 0;
  bool sane = counts.size() == static_cast<std::size_t>(plan.pp);
  for (const int count : counts) {
    sane = sane && count >= 0 && count <= layers;
    sum += sane ? count : 0;
  }
  if (!sane || sum != layers) {
    throw ConfigError(Problem{"launch line", "VLLM_PP_LAYER_PARTITION", "",
                              fmt::format("{} numbers that add up to {}", plan.pp, layers), ""});
  }
  LayerRange range;
  for (int i = 0; i < plan.pp_rank; ++i) {
    range.begin += counts[static_cast<std::size_t>(i)];
  }
  range.end = range.begin + counts[static_cast<std::size_t>(plan.pp_rank)];
  return range;
}

std::string full_name(const TensorBytes& tensor) {
  const std::string name = std::string(tensor.name) + std::string(tensor.suffix);
  return tensor.layer < 0 ? name : fmt::format("model.layers.{}.{}", tensor.layer, name);
}

Bytes RankWeights::rounded(Bytes granule) const {
  Bytes sum;
  for (const TensorBytes& tensor : tensors) {
    sum += align_up(tensor.bytes, granule);
  }
  return sum;
}

void check_sharding(const ModelSpec& spec, const ShardPlan& plan) {
  check_plan(plan);
  Problems problems;
  DivisionCheck division(plan, problems);
  for (const LayerSpec& layer : spec.layer_kinds) {
    division.check(layer);
  }
  if (plan.draft) {
    for (const LayerSpec& layer : spec.draft_layers) {
      division.check(layer);
    }
  }
  for (const auto* tensors : {&spec.before, &spec.after}) {
    for (const TensorSpec& tensor : *tensors) {
      division.check(tensor);
    }
  }
  problems.raise_if_any();
}

bool uses_transformers_backend(std::string_view architecture, const Version& vllm_version) {
  const std::string file = "transformers_backend.json";
  Problems problems;
  const Json& json = embedded_json(file);
  const JsonView view(json, file, "", problems);
  const auto engine = view.object("vllm");
  const auto since = engine ? engine->text(architecture) : std::nullopt;
  problems.raise_if_any();
  const auto version = since ? parse_version(*since) : std::nullopt;
  return version && vllm_version >= *version;
}

RankWeights weights_on_rank(const ModelSpec& spec, const ShardPlan& plan) {
  check_sharding(spec, plan);
  const LayerRange range = stage_layers(spec, plan);
  RankBuilder rank(spec, plan);
  if (plan.towers) {
    for (const Tower& tower : spec.towers) {
      rank.add(tower);
    }
  }
  for (const TensorSpec& tensor : spec.before) {
    if (on_stage(tensor.place, plan)) {
      rank.add(tensor, -1, 0);
    }
  }
  for (int i = range.begin; i < range.end; ++i) {
    rank.add(spec.layer(i), i);
  }
  for (const TensorSpec& tensor : spec.after) {
    if (on_stage(tensor.place, plan)) {
      rank.add(tensor, -1, 0);
    }
  }
  rank.add_lora_ends(on_stage(Place::kFirstStage, plan), on_stage(Place::kLastStage, plan));
  if (plan.draft && on_stage(Place::kLastStage, plan)) {
    for (std::size_t i = 0; i < spec.draft_layers.size(); ++i) {
      rank.add(spec.draft_layers[i], spec.layer_count() + static_cast<int>(i));
    }
  }
  RankWeights weights = rank.take();
  weights.converts_awq_in_place = plan.converts_awq_in_place;
  weights.repacks_fp4 = plan.repacks_fp4;
  if (plan.makes_tied_head && spec.tie_word_embeddings && on_stage(Place::kLastStage, plan)) {
    const auto embedding =
        std::find_if(weights.tensors.begin(), weights.tensors.end(), [](const TensorBytes& tensor) {
          return tensor.name == "embed_tokens.weight" && tensor.suffix.empty();
        });
    weights.dropped_head = embedding == weights.tensors.end() ? Bytes{} : embedding->bytes;
  }
  return weights;
}

}  // namespace oomcast::models
