// Llama and what its class serves (Yi, CodeLlama, TinyLlama, InternLM, Aquila, XVERSE …), Mistral,
// Granite, Seed-OSS, MiniCPM, MiMo, EXAONE: RMSNorm, gated feed-forward, two norms a layer.
#include "models/families/builders.hpp"

namespace oomcast::models {

void build_llama(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  // InternLM's first generation calls it `bias`.
  style.attention.qkv_bias = config.flag("attention_bias") || config.flag("bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.ffn_bias = config.flag("mlp_bias");
  if (config.nested()) {
    style.sizes.default_hidden = 4096;
    style.sizes.default_layers = 32;
    style.sizes.default_heads = 32;
    style.sizes.default_width = 11008;
    style.sizes.default_vocabulary = 32000;
  }
  build_decoder(config, spec, style);
}

void build_mistral(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  if (config.nested()) {
    style.sizes.default_hidden = 4096;
    style.sizes.default_layers = 32;
    style.sizes.default_heads = 32;
    style.sizes.default_kv_heads = 8;
    style.sizes.default_width = 14336;
    style.sizes.default_vocabulary = 32000;
  }
  build_decoder(config, spec, style);
}

void build_granite(const Config& config, ModelSpec& spec) { build_llama(config, spec); }

void build_internlm2(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("bias");
  style.attention.output_bias = style.attention.qkv_bias;
  build_decoder(config, spec, style);
}

void build_seed_oss(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.class_default("attention_bias", true);
  style.attention.output_bias = config.flag("attention_out_bias");
  style.ffn_bias = config.flag("mlp_bias");
  style.sizes.head_dim = 128;
  build_decoder(config, spec, style);
}

// EXAONE 3: Llama under other names; EXAONE 4: norms after attention and feed-forward, q/k norms,
// windows whose layers alone have rotary embeddings.
void build_exaone(const Config& config, ModelSpec& spec) { build_decoder(config, spec, {}); }

void build_exaone4(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qk_norm = QkNorm::kPerHead;
  style.attention.norms_first = true;
  style.norms = {{"post_attention_layernorm.weight", ""},
                 {"post_feedforward_layernorm.weight", ""}};
  style.local_rope = LocalRope::kOnlyLocal;
  style.full_every = 4;
  build_decoder(config, spec, style);
}

void build_minicpm(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.tie_default = true;
  build_decoder(config, spec, style);
}

}  // namespace oomcast::models
