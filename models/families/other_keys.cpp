// Decoders whose files speak in keys of their own: DBRX, Phi-3-small, Molmo, the pruned Llamas of
// Nemotron (DeciLM), and Llama 3.2 Vision with its cross-attention layers.
#include "models/families/builders.hpp"
#include "models/families/layer_parts.hpp"

namespace oomcast::models {
namespace {

// One object in the file; a problem when it is not there.
std::optional<JsonView> section(const Config& config, std::string_view key) {
  const Json* json = config.find(key);
  if (json == nullptr || !json->is_object()) {
    config.complain(key, "a JSON object");
    return std::nullopt;
  }
  return JsonView(*json, config.source(), std::string(key), config.problems());
}

std::int64_t required_in(const JsonView& view, std::string_view key, Range range) {
  if (!view.has(key)) {
    view.complain(key, "the key " + std::string(key));
  }
  return view.integer(key, range.low, range.high).value_or(range.low);
}

}  // namespace

void build_dbrx(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.sizes.read_width = false;
  style.sizes.read_kv_heads = false;
  Sizes sizes = read_sizes(config, spec, false, style.sizes);
  MoeStyle moe;
  if (const auto attention = section(config, "attn_config")) {
    sizes.kv_heads = required_in(*attention, "kv_n_heads", {1, kMostHeads});
    style.rope.theta_default = attention->number("rope_theta").value_or(10000.0);
  }
  if (const auto ffn = section(config, "ffn_config")) {
    moe.experts = required_in(*ffn, "moe_num_experts", {1, kMostExperts});
    moe.experts_per_token = required_in(*ffn, "moe_top_k", {1, moe.experts});
    moe.expert_width = required_in(*ffn, "ffn_hidden_size", {1, kMostWidth});
  }
  style.moe = moe;
  build_decoder(config, spec, style, sizes);
}

// Block-sparse in every second layer, which keeps all KV all the same.
void build_phi3_small(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.tie_default = true;
  style.sizes.read_width = false;
  style.attention.qkv_bias = true;
  style.attention.output_bias = true;
  style.ffn_bias = true;
  style.norms = {{"input_layernorm.weight", "input_layernorm.bias"},
                 {"post_attention_layernorm.weight", "post_attention_layernorm.bias"}};
  style.head.norm_bias = true;
  style.rope.theta_key = "rope_embedding_base";
  style.rope.theta_default = 1e6;
  Sizes sizes = read_sizes(config, spec, style.tie_default, style.sizes);
  sizes.width = config.required({"ff_intermediate_size"}, {1, kMostWidth});
  build_decoder(config, spec, style, sizes);
}

// Qwen 2 with an embedding of 128 further tokens; intermediate_size counts gate and up together.
void build_molmo(const Config& config, ModelSpec& spec) {
  constexpr std::int64_t kFurtherTokens = 128;
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("qkv_bias");
  style.attention.qk_norm =
      config.flag("attention_layer_norm") ? QkNorm::kFullWidth : QkNorm::kNone;
  style.sizes.halve_width = true;
  build_decoder(config, spec, style);
  TensorSpec further;
  further.name = "embed_tokens.new_embedding";
  further.rows = {{.size = kFurtherTokens}};
  further.columns = {.size = spec.hidden};
  spec.before.push_back(further);
}

// ---- DeciLM ------------------------------------------------------------------------------------

namespace {

struct DeciBlock {
  std::int64_t heads_in_group = 0;  // 0: no attention
  std::int64_t width = 0;           // 0: no feed-forward
  friend bool operator==(const DeciBlock&, const DeciBlock&) = default;
};

bool is_absent(const JsonView& part) {
  return part.boolean("no_op").value_or(false) ||
         part.boolean("replace_with_linear").value_or(false);
}

// Width of a pruned feed-forward (configuration_decilm.py): two thirds of mult x hidden, in 256s.
std::int64_t deci_width(double multiple, std::int64_t hidden) {
  const auto raw = static_cast<std::int64_t>(2.0 * multiple * static_cast<double>(hidden) / 3.0);
  return align_up(raw, std::int64_t{256});
}

DeciBlock read_deci_block(const Config& config, const Json& json, std::size_t number,
                          const Sizes& sizes) {
  DeciBlock block;
  const std::string path = fmt::format("block_configs[{}]", number);
  if (!json.is_object()) {
    config.complain("block_configs", "an object with attention and ffn for every layer");
    return block;
  }
  const JsonView view(json, config.source(), path, config.problems());
  if (const auto attention = view.object("attention"); attention && !is_absent(*attention)) {
    block.heads_in_group = required_in(*attention, "n_heads_in_group", {1, sizes.heads});
    if (sizes.heads % block.heads_in_group != 0) {
      attention->complain("n_heads_in_group",
                          fmt::format("a divisor of num_attention_heads {}", sizes.heads));
      block.heads_in_group = 1;
    }
  }
  if (const auto ffn = view.object("ffn"); ffn && !is_absent(*ffn)) {
    const auto direct = ffn->integer("intermediate_size", 1, kMostWidth);
    const double multiple = ffn->number("ffn_mult").value_or(0.0);
    if (!direct && !(multiple > 0.0 && multiple <= 64.0)) {
      ffn->complain("ffn_mult", "a number above 0 and at most 64");
    } else {
      block.width = direct.value_or(deci_width(multiple, sizes.hidden));
    }
  }
  return block;
}

}  // namespace

void build_decilm(const Config& config, ModelSpec& spec) {
  SizeRules rules;
  rules.read_width = false;
  rules.read_kv_heads = false;
  const Sizes sizes = read_sizes(config, spec, false, rules);
  const Json* list = config.find("block_configs");
  if (list == nullptr || !list->is_array() ||
      list->size() != static_cast<std::size_t>(sizes.layers)) {
    config.complain("block_configs", fmt::format("{} blocks, one a layer", sizes.layers));
    return;
  }
  std::vector<DeciBlock> kinds;
  std::vector<int> kind_of;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const DeciBlock block = read_deci_block(config, (*list)[i], i, sizes);
    auto at = std::find(kinds.begin(), kinds.end(), block);
    if (at == kinds.end()) {
      at = kinds.insert(kinds.end(), block);
    }
    kind_of.push_back(static_cast<int>(at - kinds.begin()));
  }
  const int rope = add_rope(config, spec, {.head_dim = sizes.head_dim});
  const bool bias = config.flag("attention_bias");
  add_layers(
      spec, sizes.layers, [&](int i) { return kind_of[static_cast<std::size_t>(i)]; },
      [&](int kind) {
        const DeciBlock& block = kinds[static_cast<std::size_t>(kind)];
        LayerSpec layer;
        if (block.heads_in_group > 0) {
          AttentionSpec attention = full_attention(sizes, rope);
          attention.kv_heads = sizes.heads / block.heads_in_group;
          add_attention(spec, layer, attention, {.qkv_bias = bias, .output_bias = bias});
          add_norm(layer.tensors, "input_layernorm.weight", spec.hidden);
        }
        if (block.width > 0) {
          add_ffn(spec, layer, FfnKind::kGated, block.width, config.flag("mlp_bias"));
          add_norm(layer.tensors, "post_attention_layernorm.weight", spec.hidden);
        }
        return layer;
      });
  add_embedding_and_head(spec);
}

// ---- Llama 3.2 Vision --------------------------------------------------------------------------

void build_mllama(const Config& config, ModelSpec& spec) {
  constexpr std::int64_t kImageTokens = 8;  // rows of the embedding beyond the vocabulary
  const Sizes sizes = read_sizes(config, spec, false);
  std::vector<bool> cross(static_cast<std::size_t>(sizes.layers), false);
  for (const std::int64_t layer : config.integers("cross_attention_layers", {0, sizes.layers - 1})
                                      .value_or(std::vector<std::int64_t>{})) {
    cross[static_cast<std::size_t>(layer)] = true;
  }
  const AttentionSpec attention =
      full_attention(sizes, add_rope(config, spec, {.head_dim = sizes.head_dim}));
  add_layers(
      spec, sizes.layers, [&](int i) { return cross[static_cast<std::size_t>(i)] ? 1 : 0; },
      [&](int variant) {
        LayerSpec layer;
        AttentionSpec own = attention;
        AttentionStyle style;
        if (variant == 1) {
          own.kind = AttentionKind::kCrossAttention;
          own.rope = -1;
          style.qk_norm = QkNorm::kPerHead;
        }
        add_attention(spec, layer, own, style);
        add_ffn(spec, layer, FfnKind::kGated, sizes.width);
        add_two_norms(spec, layer);
        if (variant == 1) {
          add_vector(layer.tensors, "cross_attn_attn_gate", 1);
          add_vector(layer.tensors, "cross_attn_mlp_gate", 1);
        }
        return layer;
      });
  add_embedding_and_head(spec);
  spec.before.front().rows.push_back({.size = kImageTokens});
}

}  // namespace oomcast::models
