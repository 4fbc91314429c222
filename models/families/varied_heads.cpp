// Decoders whose layers with a window differ from the full ones in more than the window: MiMo V2
// (heads and rope), Laguna (heads), Muse Glimmer (rope), Step 3.5 and 3.7 (heads), MiniMax M3
// (sparse layers with an indexer).
#include <charconv>

#include "models/families/builders.hpp"
#include "models/families/layer_parts.hpp"

namespace oomcast::models {
namespace {

void set_window(AttentionSpec& attention, Tokens window) {
  attention.kind = AttentionKind::kSlidingWindow;
  attention.window = window;
}

// Of families that know no pattern: layer_types has to say which layers have the window.
Windows read_listed_windows(const Config& config, int layers) {
  if (config.has("sliding_window") && !config.has("layer_types")) {
    config.complain("layer_types", fmt::format("{} entries, as there is a sliding_window", layers));
  }
  return read_windows(config, layers, {});
}

void add_ffn_or_moe(const ModelSpec& spec, LayerSpec& layer, bool experts, const MoeStyle& moe,
                    std::int64_t width) {
  if (experts) {
    add_moe(spec, layer, moe);
  } else {
    add_ffn(spec, layer, FfnKind::kGated, width);
  }
}

MoeStyle read_moe(const Config& config, Keys width_keys) {
  MoeStyle moe;
  moe.experts = read_experts(config);
  moe.experts_per_token = read_experts_per_token(config, moe.experts);
  moe.expert_width = config.required(width_keys, {1, kMostWidth});
  moe.correction_bias = true;
  return moe;
}

// Bits of a layer's variant.
constexpr int kSliding = 1;
constexpr int kExperts = 2;

}  // namespace

// ---- MiMo V2 -----------------------------------------------------------------------------------

namespace {

AttentionSpec read_mimo_window(const Config& config, const AttentionSpec& full) {
  AttentionSpec sliding = full;
  const Range heads{1, kMostHeads};
  const Range widths{1, kMostHeadDim};
  sliding.heads = config.plain({"swa_num_attention_heads"}, full.heads, heads);
  sliding.kv_heads = config.plain({"swa_num_key_value_heads"}, full.kv_heads, heads);
  sliding.head_dim = config.plain({"swa_head_dim"}, full.head_dim, widths);
  sliding.v_head_dim = config.plain({"swa_v_head_dim"}, full.v_head_dim, widths);
  set_window(sliding, Tokens{config.required({"sliding_window_size", "sliding_window"},
                                             {1, kMostPosition})});
  sliding.sinks = config.flag("add_swa_attention_sink_bias");
  return sliding;
}

// Each of the published checkpoints' three draft layers: a window layer with a dense feed-forward.
constexpr std::int64_t kMimoDrafts = 3;

}  // namespace

void build_mimo_v2(const Config& config, ModelSpec& spec) {
  const Sizes sizes = read_sizes(config, spec, false);
  AttentionSpec full = full_attention(sizes, -1);
  full.v_head_dim = config.plain({"v_head_dim"}, sizes.head_dim, {1, kMostHeadDim});
  full.sinks = config.flag("add_full_attention_sink_bias");
  AttentionSpec sliding = read_mimo_window(config, full);
  RopeRules rope;
  rope.head_dim = sizes.head_dim;
  full.rope = add_rope(config, spec, rope);
  rope.theta_key = "swa_rope_theta";
  rope.head_dim = sliding.head_dim;
  rope.theta_from_key = true;
  sliding.rope = add_rope(config, spec, rope);
  const std::vector<bool> windows = read_flags(config, "hybrid_layer_pattern", sizes.layers);
  const std::vector<bool> experts = read_moe_layers(config, sizes.layers);
  MoeStyle moe = read_moe(config, {"moe_intermediate_size"});
  moe.router_fp32 = config.text("moe_router_dtype").value_or("float32") == "float32";
  moe.shared_width = moe.expert_width * config.plain({"n_shared_experts"}, 0, {0, 1024});
  AttentionStyle style;
  style.qkv_bias = config.flag("attention_bias");
  const auto make = [&](int variant) {
    LayerSpec layer;
    add_attention(spec, layer, (variant & kSliding) != 0 ? sliding : full, style);
    add_ffn_or_moe(spec, layer, (variant & kExperts) != 0, moe, sizes.width);
    add_two_norms(spec, layer);
    return layer;
  };
  add_layers(
      spec, sizes.layers,
      [&](int i) {
        const auto at = static_cast<std::size_t>(i);
        return (windows[at] ? kSliding : 0) + (experts[at] ? kExperts : 0);
      },
      make);
  add_embedding_and_head(spec);
  style.output_quantisable = false;  // in draft layers, whatever the checkpoint says
  LayerSpec draft = make(kSliding);
  start_draft(spec, draft);
  finish_drafts(spec, std::move(draft), kMimoDrafts, {});
}

// ---- Laguna ------------------------------------------------------------------------------------

void build_laguna(const Config& config, ModelSpec& spec) {
  const Sizes sizes = read_sizes(config, spec, false);
  const auto count = static_cast<std::size_t>(sizes.layers);
  std::vector<std::int64_t> heads =
      config.integers("num_attention_heads_per_layer", {1, kMostHeads})
          .value_or(std::vector<std::int64_t>(count, sizes.heads));
  const bool divide = std::all_of(heads.begin(), heads.end(), [&](std::int64_t number) {
    return number % sizes.kv_heads == 0;
  });
  if (heads.size() != count || !divide) {
    config.complain("num_attention_heads_per_layer",
                    fmt::format("{} multiples of num_key_value_heads {}, one a layer", sizes.layers,
                                sizes.kv_heads));
    heads.assign(count, sizes.heads);
  }
  const Windows windows = read_listed_windows(config, sizes.layers);
  RopeRules rope;
  rope.head_dim = sizes.head_dim;
  rope.layer_type = "full_attention";
  const int full_rope = add_rope(config, spec, rope);
  rope.layer_type = "sliding_attention";
  const int sliding_rope = add_rope(config, spec, rope);
  MoeStyle moe = read_moe(config, {"moe_intermediate_size"});
  moe.shared_width = config.plain({"shared_expert_intermediate_size"}, 0, {0, kMostWidth});
  const std::vector<bool> experts = read_moe_layers(config, sizes.layers);
  AttentionStyle style;
  style.qkv_bias = config.flag("qkv_bias");
  style.output_bias = config.flag("attention_bias");
  style.qk_norm = QkNorm::kPerHead;
  const Json* gating = config.find("gating");
  if (gating != nullptr && *gating != false) {
    style.gate = "self_attn.g_proj.weight";
    style.gate_per_head = *gating == true || *gating == "per-head";
  }
  // Heads differ by layer, so a variant is its heads and its bits.
  const auto make = [&](int variant) {
    AttentionSpec attention =
        full_attention(sizes, (variant & kSliding) != 0 ? sliding_rope : full_rope);
    attention.heads = variant / 4;
    if ((variant & kSliding) != 0) {
      set_window(attention, windows.window);
    }
    LayerSpec layer;
    add_attention(spec, layer, attention, style);
    add_ffn_or_moe(spec, layer, (variant & kExperts) != 0, moe, sizes.width);
    add_two_norms(spec, layer);
    return layer;
  };
  add_layers(
      spec, sizes.layers,
      [&](int i) {
        const auto at = static_cast<std::size_t>(i);
        return static_cast<int>(heads[at]) * 4 + (windows.sliding[at] ? kSliding : 0) +
               (experts[at] ? kExperts : 0);
      },
      make);
  add_embedding_and_head(spec);
}

// ---- Muse Glimmer ------------------------------------------------------------------------------

// Layers with a window have rotary embedding, full ones none; q and k are normalised without
// weights, the output is gated by channel (vLLM muse_glimmer.py).
void build_muse_glimmer(const Config& config, ModelSpec& spec) {
  const Sizes sizes = read_sizes(config, spec, false);
  DecoderStyle pattern;
  pattern.full_every = 4;
  const Windows windows = read_windows(config, sizes.layers, pattern);
  const int rope = add_rope(config, spec, {.head_dim = sizes.head_dim});
  AttentionStyle style;
  style.gate = "self_attn.output_gate_proj.weight";
  add_layers(
      spec, sizes.layers,
      [&](int i) { return windows.sliding[static_cast<std::size_t>(i)] ? kSliding : 0; },
      [&](int variant) {
        AttentionSpec attention = full_attention(sizes, variant == kSliding ? rope : -1);
        if (variant == kSliding) {
          set_window(attention, windows.window);
        }
        LayerSpec layer;
        add_attention(spec, layer, attention, style);
        layer.attention.qk_norm = true;
        add_ffn(spec, layer, FfnKind::kGated, sizes.width);
        add_two_norms(spec, layer);
        add_norm(layer.tensors, "pre_feedforward_layernorm.weight", spec.hidden);
        add_norm(layer.tensors, "post_feedforward_layernorm.weight", spec.hidden);
        return layer;
      });
  add_embedding_and_head(spec);
}

// ---- Step 3.5 and 3.7 --------------------------------------------------------------------------

namespace {

// moe_layers_enum: "4,5,6"; without it all layers but the first ones.
std::vector<bool> read_step_moe_layers(const Config& config, int layers) {
  const auto text = config.text("moe_layers_enum");
  if (!text) {
    return read_moe_layers(config, layers);
  }
  std::vector<bool> moe(static_cast<std::size_t>(layers), false);
  std::size_t at = 0;
  while (at < text->size()) {
    std::size_t end = text->find(',', at);
    end = end == std::string::npos ? text->size() : end;
    int number = -1;
    const auto parsed = std::from_chars(text->data() + at, text->data() + end, number);
    if (parsed.ec != std::errc{} || parsed.ptr != text->data() + end || number < 0 ||
        number >= layers) {
      config.complain("moe_layers_enum", fmt::format("layer numbers below {}, by commas", layers));
      return moe;
    }
    moe[static_cast<std::size_t>(number)] = true;
    at = end + 1;
  }
  return moe;
}

// attention_other_setting: heads of the layers of one type.
AttentionSpec read_other_setting(const Config& config, AttentionSpec attention) {
  const Json* other = config.find("attention_other_setting");
  if (other != nullptr && other->is_object()) {
    const JsonView view(*other, config.source(), "attention_other_setting", config.problems());
    attention.heads = view.integer("num_attention_heads", 1, kMostHeads).value_or(attention.heads);
    attention.kv_heads =
        view.integer("num_attention_groups", 1, kMostHeads).value_or(attention.kv_heads);
  }
  return attention;
}

MoeStyle read_step_moe(const Config& config) {
  MoeStyle moe = read_moe(config, {"moe_intermediate_size"});
  moe.shared_width = config.plain({"share_expert_dim"}, 0, {0, kMostWidth});
  moe.router_fp32 = true;
  moe.correction_bias = config.flag("use_moe_router_bias");
  return moe;
}

}  // namespace

void build_step35(const Config& config, ModelSpec& spec) {
  SizeRules rules;
  rules.read_kv_heads = !config.has("num_attention_groups");
  Sizes sizes = read_sizes(config, spec, false, rules);
  if (!rules.read_kv_heads) {
    sizes.kv_heads = config.required({"num_attention_groups"}, {1, sizes.heads});
  }
  const Windows windows = read_listed_windows(config, sizes.layers);
  const int rope = add_rope(config, spec, {.head_dim = sizes.head_dim});
  const MoeStyle moe = read_step_moe(config);
  const std::vector<bool> experts = read_step_moe_layers(config, sizes.layers);
  AttentionStyle style;
  style.qkv_bias = config.flag("attention_bias");
  style.qk_norm = QkNorm::kPerHead;
  if (config.flag("use_head_wise_attn_gate")) {
    style.gate = "self_attn.g_proj.weight";
    style.gate_per_head = true;
  }
  const auto make = [&](int variant) {
    AttentionSpec attention = full_attention(sizes, rope);
    if ((variant & kSliding) != 0) {
      set_window(attention, windows.window);
      attention = read_other_setting(config, attention);
    }
    LayerSpec layer;
    add_attention(spec, layer, attention, style);
    add_ffn_or_moe(spec, layer, (variant & kExperts) != 0, moe, sizes.width);
    add_two_norms(spec, layer);
    return layer;
  };
  add_layers(
      spec, sizes.layers,
      [&](int i) {
        const auto at = static_cast<std::size_t>(i);
        return (windows.sliding[at] ? kSliding : 0) + (experts[at] ? kExperts : 0);
      },
      make);
  add_embedding_and_head(spec);
  if (const std::int64_t drafts = read_drafts(config); drafts > 0) {
    LayerSpec draft = make(windows.window > Tokens{0} ? kSliding : 0);
    start_draft(spec, draft);
    finish_drafts(spec, std::move(draft), drafts, {.head = true});
  }
}

// Step 3: one key and value head; queries pass through a shared low rank (multi-matrix
// factorisation attention).
void build_step3(const Config& config, ModelSpec& spec) {
  SizeRules rules;
  rules.read_kv_heads = false;
  Sizes sizes = read_sizes(config, spec, false, rules);
  sizes.kv_heads = 1;
  const std::int64_t rank = config.required({"share_q_dim"}, {1, kMostWidth});
  const int rope = add_rope(config, spec, {.head_dim = sizes.head_dim, .theta_default = 500000.0});
  const MoeStyle moe = read_step_moe(config);
  const std::vector<bool> experts = read_step_moe_layers(config, sizes.layers);
  add_layers(
      spec, sizes.layers,
      [&](int i) { return experts[static_cast<std::size_t>(i)] ? kExperts : 0; },
      [&](int variant) {
        LayerSpec layer;
        layer.attention = full_attention(sizes, rope);
        std::vector<TensorSpec>& tensors = layer.tensors;
        add_linear(tensors,
                   {.weight = "self_attn.qkv_proj.weight",
                    .bias = {},
                    .rows = {{.size = rank}, {.size = sizes.head_dim}, {.size = sizes.head_dim}},
                    .columns = {.size = spec.hidden}});
        add_norm(tensors, "self_attn.inter_norm.weight", rank);
        add_linear(tensors, {.weight = "self_attn.wq.weight",
                             .bias = {},
                             .rows = {{sizes.heads, sizes.head_dim, Split::kEven}},
                             .columns = {.size = rank}});
        add_linear(tensors, {.weight = "self_attn.o_proj.weight",
                             .bias = {},
                             .rows = {{.size = spec.hidden}},
                             .columns = {sizes.heads, sizes.head_dim, Split::kEven}});
        add_rope_table(tensors, spec, rope);
        add_attention_scales(tensors);
        add_ffn_or_moe(spec, layer, variant == kExperts, moe, sizes.width);
        add_two_norms(spec, layer);
        return layer;
      });
  add_embedding_and_head(spec);
}

// ---- MiniMax M3 --------------------------------------------------------------------------------

namespace {

struct SparseSizes {
  std::vector<bool> layers;
  std::int64_t heads = 0;
  std::int64_t width = 0;
};

SparseSizes read_sparse(const Config& config, int layers) {
  SparseSizes out;
  out.layers.assign(static_cast<std::size_t>(layers), false);
  const Json* block = config.find("sparse_attention_config");
  if (block == nullptr || !block->is_object()) {
    return out;
  }
  const JsonView view(*block, config.source(), "sparse_attention_config", config.problems());
  if (!view.boolean("use_sparse_attention").value_or(true)) {
    return out;
  }
  out.heads = view.integer("sparse_num_index_heads", 1, kMostHeads).value_or(1);
  out.width = view.integer("sparse_index_dim", 1, kMostHeadDim).value_or(128);
  const Json* flags = view.find("sparse_attention_freq");
  const bool fits = flags != nullptr && flags->is_array() && flags->size() == out.layers.size() &&
                    std::all_of(flags->begin(), flags->end(),
                                [](const Json& flag) { return flag == 0 || flag == 1; });
  if (!fits) {
    view.complain("sparse_attention_freq", fmt::format("{} zeros and ones, one a layer", layers));
    return out;
  }
  std::transform(flags->begin(), flags->end(), out.layers.begin(),
                 [](const Json& flag) { return flag == 1; });
  return out;
}

void add_index_branch(const ModelSpec& spec, LayerSpec& layer, const SparseSizes& sparse) {
  layer.attention.index_key = sparse.width;
  add_linear(layer.tensors,
             {.weight = "self_attn.index_qk_proj.weight",
              .bias = {},
              .rows = {{sparse.heads, sparse.width, Split::kKvHeads}, {.size = sparse.width}},
              .columns = {.size = spec.hidden}});
  add_norm(layer.tensors, "self_attn.index_q_norm.weight", sparse.width);
  add_norm(layer.tensors, "self_attn.index_k_norm.weight", sparse.width);
}

}  // namespace

void build_minimax_m3(const Config& config, ModelSpec& spec) {
  spec.ffn_module = "block_sparse_moe";
  const int layers = read_layer_count(config);
  const Sizes sizes = read_sizes(config, spec, false);
  const SparseSizes sparse = read_sparse(config, layers);
  RopeRules rope_rules;
  rope_rules.head_dim = sizes.head_dim;
  rope_rules.rotary_dim = config.maybe({"rotary_dim"}, {1, kMostHeadDim});
  const int rope = add_rope(config, spec, rope_rules);
  MoeStyle moe = read_moe(config, {"moe_intermediate_size", "intermediate_size"});
  moe.router_fp32 = true;
  moe.correction_bias = config.flag("use_routing_bias", true);
  moe.shared_width = config.plain({"shared_intermediate_size"}, moe.expert_width, {0, kMostWidth}) *
                     config.plain({"n_shared_experts"}, 0, {0, 1024});
  const std::int64_t dense =
      config.plain({"dense_intermediate_size"}, sizes.width, {1, kMostWidth});
  const std::vector<bool> experts = read_moe_layers(config, layers);
  AttentionStyle style;
  style.qk_norm = config.flag("use_qk_norm", true) ? QkNorm::kPerHead : QkNorm::kNone;
  style.norms_first = true;
  if (config.flag("attention_output_gate")) {
    style.gate = "self_attn.o_gate.weight";
  }
  constexpr int kSparse = 4;
  add_layers(
      spec, layers,
      [&](int i) {
        const auto at = static_cast<std::size_t>(i);
        return (experts[at] ? kExperts : 0) + (sparse.layers[at] ? kSparse : 0);
      },
      [&](int variant) {
        LayerSpec layer;
        add_attention(spec, layer, full_attention(sizes, rope), style);
        if ((variant & kSparse) != 0) {
          add_index_branch(spec, layer, sparse);
        }
        add_ffn_or_moe(spec, layer, (variant & kExperts) != 0, moe, dense);
        add_two_norms(spec, layer);
        return layer;
      });
  add_embedding_and_head(spec);
  if (config.plain({"num_mtp_modules"}, 0, {0, 64}) > 0) {
    spec.notes.emplace_back("draft layers (num_mtp_modules) are not described and not counted");
  }
}

}  // namespace oomcast::models
