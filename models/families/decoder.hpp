// The plain decoder: attention, feed-forward, norms, the same in every layer but for windows and
// ropes. Most dense families are this with a few switches.
#pragma once

#include "models/families/family.hpp"
#include "models/families/moe.hpp"

namespace oomcast::models {

struct NormNames {
  std::string_view weight;
  std::string_view bias;  // empty: RMSNorm
};

// Rope of sliding-window layers in models that mix them with full ones.
enum class LocalRope : std::uint8_t {
  kSame,      // one table for all layers
  kUnscaled,  // same theta without scaling (OLMo 3)
  kOwnTheta,  // rope_local_base_freq, unscaled (Gemma 3)
  kOnlyLocal  // full layers have no rotary embedding at all (EXAONE 4)
};

struct DecoderStyle {
  bool tie_default = false;
  SizeRules sizes;
  AttentionStyle attention;
  FfnKind ffn = FfnKind::kGated;
  bool ffn_bias = false;
  std::vector<NormNames> norms = {{"input_layernorm.weight", ""},
                                  {"post_attention_layernorm.weight", ""}};
  HeadStyle head;
  RopeRules rope;
  LocalRope local_rope = LocalRope::kSame;
  // Without layer_types: layer i is full when (i + 1) % full_every == 0, the others have windows.
  // 0: sliding_window, if set, holds for all layers.
  std::int64_t full_every = 0;
  // `window` is the length of a chunk (Llama 4).
  bool chunked = false;
  std::string_view window_key = "sliding_window";
  // Set: layers marked in moe_layers (empty: all) are mixtures of experts.
  std::optional<MoeStyle> moe;
  std::vector<bool> moe_layers;
  bool sinks = false;       // one logit a head that attention may fall into
  bool no_rope = false;     // ALiBi or learned positions
  std::int64_t drafts = 0;  // draft layers like the last layer
  DraftCopies draft_copies;
  // A window needs use_sliding_window: true beside sliding_window (Qwen2).
  bool window_switch = false;
};

// Which layers have a window, by layer_types, full_every or sliding_window; and how long it is.
struct Windows {
  std::vector<bool> sliding;
  Tokens window;
};
Windows read_windows(const Config& config, int layers, const DecoderStyle& style);

void build_decoder(const Config& config, ModelSpec& spec, const DecoderStyle& style);
// The same with sizes that the caller has read (and mended).
void build_decoder(const Config& config, ModelSpec& spec, const DecoderStyle& style,
                   const Sizes& sizes);

}  // namespace oomcast::models
