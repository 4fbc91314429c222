// Decoders with LayerNorm or other departures from Llama: StableLM, StarCoder 2, Cohere, Baichuan,
// ChatGLM and GLM-4.
#include "models/families/builders.hpp"

namespace oomcast::models {

void build_stablelm(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("use_qkv_bias");
  style.norms = {{"input_layernorm.weight", "input_layernorm.bias"}};
  if (!config.flag("use_parallel_residual")) {
    style.norms.push_back({"post_attention_layernorm.weight", "post_attention_layernorm.bias"});
  }
  style.head.norm_bias = true;
  build_decoder(config, spec, style);
}

void build_starcoder2(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.tie_default = true;
  const bool bias = config.class_default("use_bias", true);
  style.attention.qkv_bias = bias;
  style.attention.output_bias = bias;
  style.ffn = FfnKind::kPlain;
  style.ffn_bias = bias;
  style.norms = {{"input_layernorm.weight", "input_layernorm.bias"},
                 {"post_attention_layernorm.weight", "post_attention_layernorm.bias"}};
  style.head.norm_bias = true;
  build_decoder(config, spec, style);
}

// One norm a layer, without bias; attention and feed-forward run side by side.
void build_cohere(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.tie_default = true;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.attention.qk_norm = config.flag("use_qk_norm") ? QkNorm::kFullWidth : QkNorm::kNone;
  style.norms = {{"input_layernorm.weight", ""}};
  build_decoder(config, spec, style);
}

// 7B: rotary, 13B: ALiBi (no table). Only the hidden size tells them apart.
void build_baichuan(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.sizes.read_kv_heads = false;
  style.no_rope = config.plain({"hidden_size"}, 0, {1, kMostHidden}) == 5120;
  build_decoder(config, spec, style);
}

void build_chatglm(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  const bool bias = config.flag("add_bias_linear");
  style.attention.qkv_bias = bias || config.flag("add_qkv_bias");
  style.attention.output_bias = bias;
  style.ffn_bias = bias;
  // Half of each head is rotated.
  style.rope.partial_default = 0.5;
  build_decoder(config, spec, style);
}

// GLM-4 as published for Transformers; 4-0414 and GLM-4.1V add two norms after the blocks.
void build_glm4(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.class_default("attention_bias", true);
  style.norms = {{"input_layernorm.weight", ""},
                 {"post_attention_layernorm.weight", ""},
                 {"post_self_attn_layernorm.weight", ""},
                 {"post_mlp_layernorm.weight", ""}};
  style.rope.partial_default = 0.5;
  build_decoder(config, spec, style);
}

void build_glm(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.class_default("attention_bias", true);
  style.rope.partial_default = 0.5;
  build_decoder(config, spec, style);
}

}  // namespace oomcast::models
