// Gemma 1, 2 and 3 (text): head_dim of the class, tied embeddings, an embedding scale.
#include "models/families/builders.hpp"

namespace oomcast::models {
namespace {

std::vector<NormNames> four_norms() {
  return {{"input_layernorm.weight", ""},
          {"post_attention_layernorm.weight", ""},
          {"pre_feedforward_layernorm.weight", ""},
          {"post_feedforward_layernorm.weight", ""}};
}

}  // namespace

void build_gemma(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.tie_default = true;
  style.sizes.head_dim = 256;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.head.embedding_scale = true;
  build_decoder(config, spec, style);
}

void build_gemma2(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.tie_default = true;
  style.sizes.head_dim = 256;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.norms = four_norms();
  style.head.embedding_scale = true;
  style.full_every = 2;
  build_decoder(config, spec, style);
}

void build_gemma3(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.tie_default = true;
  // Published files of the multimodal sizes leave these to Gemma3TextConfig.
  style.sizes.head_dim = 256;
  style.sizes.default_heads = 8;
  style.sizes.default_kv_heads = 4;
  style.sizes.default_vocabulary = 262208;
  style.rope.default_max_position = 131072;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.attention.qk_norm = QkNorm::kPerHead;
  style.attention.norms_first = true;
  style.norms = four_norms();
  style.head.embedding_scale = true;
  style.rope.theta_default = 1e6;
  style.local_rope = LocalRope::kOwnTheta;
  style.full_every = 6;
  build_decoder(config, spec, style);
}

}  // namespace oomcast::models
