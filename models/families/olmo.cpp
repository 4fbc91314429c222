// OLMo 2 and 3: norms after attention and feed-forward, q/k norms over the full width; OLMo 3 adds
// windows in three of four layers, whose rope is not scaled.
#include "models/families/builders.hpp"

namespace oomcast::models {

namespace {

DecoderStyle olmo_style(const Config& config) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.attention.qk_norm = QkNorm::kFullWidth;
  style.attention.norms_first = true;
  style.norms = {{"post_attention_layernorm.weight", ""},
                 {"post_feedforward_layernorm.weight", ""}};
  style.rope.theta_default = 500000.0;
  return style;
}

}  // namespace

void build_olmo2(const Config& config, ModelSpec& spec) {
  build_decoder(config, spec, olmo_style(config));
}

void build_olmo3(const Config& config, ModelSpec& spec) {
  DecoderStyle style = olmo_style(config);
  style.local_rope = LocalRope::kUnscaled;
  style.full_every = 4;
  build_decoder(config, spec, style);
}

}  // namespace oomcast::models
