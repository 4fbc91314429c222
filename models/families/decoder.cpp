#include "models/families/decoder.hpp"

namespace oomcast::models {
namespace {

// Every how many layers one is full; some publishers write the pattern itself ("LLLG").
std::int64_t read_full_every(const Config& config, const DecoderStyle& style) {
  if (style.full_every == 0) {
    return 0;
  }
  for (const char* const key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    const Json* value = config.find(key);
    if (value == nullptr) {
      continue;
    }
    if (!value->is_string()) {
      return config.plain({key}, style.full_every, {1, kMostLayers});
    }
    const auto pattern = value->get<std::string>();
    const std::size_t global = pattern.find('G');
    if (pattern.empty() || global + 1 != pattern.size() ||
        pattern.find_first_not_of('L') != global) {
      config.complain(key, "a number, or L's (local) and one final G (global)");
      return style.full_every;
    }
    return static_cast<std::int64_t>(pattern.size());
  }
  return style.full_every;
}

}  // namespace

Windows read_windows(const Config& config, int layers, const DecoderStyle& style) {
  Windows out;
  out.sliding.assign(static_cast<std::size_t>(layers), false);
  const auto window = config.maybe({style.window_key}, {1, kMostPosition});
  const std::vector<std::string> types = read_layer_types(config, layers);
  const std::int64_t full_every = types.empty() ? read_full_every(config, style) : 0;
  const bool switched_off = style.window_switch && !config.flag("use_sliding_window");
  for (int i = 0; i < layers; ++i) {
    bool sliding = window.has_value() && !switched_off;
    if (!types.empty()) {
      sliding = types[static_cast<std::size_t>(i)] == "sliding_attention" ||
                types[static_cast<std::size_t>(i)] == "chunked_attention";
    } else if (full_every > 0) {
      sliding = sliding && (i + 1) % full_every != 0;
    }
    out.sliding[static_cast<std::size_t>(i)] = sliding;
  }
  const bool any = std::find(out.sliding.begin(), out.sliding.end(), true) != out.sliding.end();
  if (any && !window) {
    config.complain(style.window_key, "a window, as layer_types names sliding_attention layers");
  }
  if (any && types.empty() && full_every > 0) {
    config.assume("layer_types", fmt::format("full attention in every layer number {}", full_every),
                  "not in the file; the family's pattern");
  }
  out.window = Tokens{any ? window.value_or(1) : 0};
  return out;
}

void build_decoder(const Config& config, ModelSpec& spec, const DecoderStyle& style) {
  build_decoder(config, spec, style, read_sizes(config, spec, style.tie_default, style.sizes));
}

void build_decoder(const Config& config, ModelSpec& spec, const DecoderStyle& style,
                   const Sizes& sizes) {
  const Windows windows = read_windows(config, sizes.layers, style);

  RopeRules rope_rules = style.rope;
  rope_rules.head_dim = sizes.head_dim;
  rope_rules.layer_type = "full_attention";
  const bool mixed = windows.window > Tokens{0};
  const bool local_only = style.local_rope == LocalRope::kOnlyLocal && mixed;
  int local_rope = -1;
  // Made at the first layer that uses it: the local table comes first where layer 0 is local.
  if (mixed && style.local_rope != LocalRope::kSame) {
    RopeRules local = rope_rules;
    local.layer_type = "sliding_attention";
    local.scaled = style.local_rope == LocalRope::kOnlyLocal;
    if (style.local_rope == LocalRope::kOwnTheta) {
      local.theta_key = "rope_local_base_freq";
      local.theta_default = 10000.0;
    }
    local_rope = add_rope(config, spec, local);
  }
  const int full_rope = local_only || style.no_rope ? -1 : add_rope(config, spec, rope_rules);
  if (mixed && style.local_rope == LocalRope::kSame) {
    local_rope = full_rope;
  }

  // Variant of a layer: bit 0: has a window, bit 1: mixture of experts.
  const auto make = [&](int variant) {
    const int sliding = variant & 1;
    LayerSpec layer;
    AttentionSpec attention;
    attention.kind = sliding != 0
                         ? (style.chunked ? AttentionKind::kChunked : AttentionKind::kSlidingWindow)
                         : AttentionKind::kFull;
    attention.heads = sizes.heads;
    attention.kv_heads = sizes.kv_heads;
    attention.head_dim = sizes.head_dim;
    attention.v_head_dim = sizes.head_dim;
    attention.window = sliding != 0 ? windows.window : Tokens{0};
    attention.rope = sliding != 0 ? local_rope : full_rope;
    attention.sinks = style.sinks;
    add_attention(spec, layer, attention, style.attention);
    if ((variant & 2) != 0) {
      add_moe(spec, layer, *style.moe);
    } else {
      add_ffn(spec, layer, style.ffn, sizes.width, style.ffn_bias);
    }
    for (const NormNames& norm : style.norms) {
      add_norm(layer.tensors, norm.weight, spec.hidden, norm.bias);
    }
    return layer;
  };
  const auto variant_of = [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    const bool moe = style.moe && (style.moe_layers.empty() || style.moe_layers.at(at));
    return (windows.sliding[at] ? 1 : 0) + (moe ? 2 : 0);
  };
  add_layers(spec, sizes.layers, variant_of, make);
  add_embedding_and_head(spec, style.head);
  if (style.drafts > 0) {
    LayerSpec draft = make(variant_of(sizes.layers - 1));
    start_draft(spec, draft);
    finish_drafts(spec, std::move(draft), style.drafts, style.draft_copies);
  }
}

}  // namespace oomcast::models
