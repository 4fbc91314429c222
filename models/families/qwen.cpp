// Qwen's dense models: 1 to 3, and the language models of Qwen2-VL, 2.5-VL, 2.5-Omni and 3-VL.
#include "models/families/builders.hpp"

namespace oomcast::models {

// Qwen 1: intermediate_size counts gate and up together; one fused c_attn with bias.
void build_qwen1(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = true;
  style.sizes.read_kv_heads = false;
  style.sizes.halve_width = true;
  build_decoder(config, spec, style);
}

namespace {

DecoderStyle qwen2_style() {
  DecoderStyle style;
  style.attention.qkv_bias = true;
  style.window_switch = true;
  return style;
}

}  // namespace

void build_qwen2(const Config& config, ModelSpec& spec) {
  build_decoder(config, spec, qwen2_style());
}

void build_qwen3(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.attention.qk_norm = QkNorm::kPerHead;
  style.sizes.head_dim = 128;
  style.window_switch = true;
  build_decoder(config, spec, style);
}

// MiMo is Qwen2 with its own sizes and a draft layer.
void build_mimo(const Config& config, ModelSpec& spec) {
  DecoderStyle style = qwen2_style();
  style.drafts = read_drafts(config);
  build_decoder(config, spec, style);
}

}  // namespace oomcast::models
