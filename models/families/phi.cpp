// Phi-3/3.5/4 (Llama with fused checkpoints) and Phi-1.5/2 (parallel blocks, LayerNorm, biases).
#include "models/families/builders.hpp"

namespace oomcast::models {

void build_phi3(const Config& config, ModelSpec& spec) { build_decoder(config, spec, {}); }

void build_phi(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = true;
  style.attention.output_bias = true;
  style.attention.output = "self_attn.dense.weight";
  style.ffn = FfnKind::kPlain;
  style.ffn_bias = true;
  style.norms = {{"input_layernorm.weight", "input_layernorm.bias"}};
  style.head.norm_bias = true;
  style.head.head_bias = true;
  build_decoder(config, spec, style);
}

}  // namespace oomcast::models
