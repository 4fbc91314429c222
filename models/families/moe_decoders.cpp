// Plain decoders whose feed-forward is a mixture of experts: Mixtral, Qwen2/3-MoE, GLM-4.5, MiniMax
// M2, ERNIE 4.5, Phi-MoE, gpt-oss, Llama 4, DeepSeek-MoE.
#include "models/families/builders.hpp"
#include "models/families/layer_parts.hpp"

namespace oomcast::models {
namespace {

MoeStyle read_moe(const Config& config, std::string_view width_key) {
  MoeStyle moe;
  moe.experts = read_experts(config);
  moe.experts_per_token = read_experts_per_token(config, moe.experts);
  moe.expert_width = config.required({width_key}, {1, kMostWidth});
  return moe;
}

}  // namespace

void build_mixtral(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.moe = read_moe(config, "intermediate_size");
  build_decoder(config, spec, style);
}

void build_qwen2_moe(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("qkv_bias", true);
  style.window_switch = true;
  style.moe = read_moe(config, "moe_intermediate_size");
  style.moe->shared_width = config.required({"shared_expert_intermediate_size"}, {1, kMostWidth});
  style.moe->shared_gate = true;
  style.moe_layers = read_moe_layers(config, read_layer_count(config));
  build_decoder(config, spec, style);
}

void build_qwen3_moe(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.attention.qk_norm = QkNorm::kPerHead;
  style.sizes.head_dim = 128;
  style.window_switch = true;
  style.moe = read_moe(config, "moe_intermediate_size");
  style.moe_layers = read_moe_layers(config, read_layer_count(config));
  // Only dense layers use it, and most sizes have none.
  style.sizes.default_width = style.moe->expert_width;
  build_decoder(config, spec, style);
}

// Only one size is published; what a file leaves out is taken from it.
void build_qwen3_omni(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.attention.qk_norm = QkNorm::kPerHead;
  style.sizes = {.head_dim = 128,
                 .default_hidden = 2048,
                 .default_layers = 48,
                 .default_width = 768,
                 .default_heads = 32,
                 .default_kv_heads = 4,
                 .default_vocabulary = 152064};
  style.rope.theta_default = 1e6;
  style.rope.default_max_position = 65536;
  MoeStyle moe;
  moe.experts = read_experts(config);
  moe.experts_per_token = config.class_default(
      {"num_experts_per_tok"}, std::min<std::int64_t>(8, moe.experts), {1, moe.experts});
  moe.expert_width = config.class_default({"moe_intermediate_size"}, 768, {1, kMostWidth});
  style.moe = moe;
  style.moe_layers = read_moe_layers(
      config, static_cast<int>(config.class_default({"num_hidden_layers"}, 48, {1, kMostLayers})));
  build_decoder(config, spec, style);
}

void build_glm4_moe(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  // Trimmed copies leave these out; every published size has the bias, all but Air the norms.
  style.attention.qkv_bias = config.class_default("attention_bias", true);
  style.attention.qk_norm =
      config.class_default("use_qk_norm", true) ? QkNorm::kPerHead : QkNorm::kNone;
  style.rope.partial_default = 0.5;
  style.sizes.head_dim = 128;
  style.moe = read_moe(config, "moe_intermediate_size");
  style.moe->shared_width =
      style.moe->expert_width * config.plain({"n_shared_experts"}, 0, {0, 1024});
  style.moe->correction_bias = true;
  style.moe->router_fp32 = true;  // in every engine; the file has 16 bits
  style.moe_layers = read_moe_layers(config, read_layer_count(config));
  style.drafts = config.class_default({"num_nextn_predict_layers"}, 1, {0, 64});
  // GLM-4.5 and 4.7 store copies; 4.6, whose file says the same, does not.
  style.draft_copies = {.embedding = true, .head = true};
  build_decoder(config, spec, style);
}

void build_minimax_m2(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qk_norm =
      config.class_default("use_qk_norm", true) ? QkNorm::kFullWidth : QkNorm::kNone;
  style.moe = read_moe(config, "intermediate_size");
  style.moe->correction_bias = config.flag("use_routing_bias", true);
  style.moe->router_fp32 = true;
  style.rope.rotary_dim = config.maybe({"rotary_dim"}, {1, kMostHeadDim});
  build_decoder(config, spec, style);
}

void build_ernie45_moe(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.tie_default = true;
  const bool bias = config.flag("use_bias");
  style.attention.qkv_bias = bias;
  style.attention.output_bias = bias;
  style.ffn_bias = bias;
  style.moe = read_moe(config, "moe_intermediate_size");
  style.moe->shared_width =
      style.moe->expert_width * config.plain({"moe_num_shared_experts"}, 0, {0, 1024});
  style.moe->correction_bias = true;
  style.moe->router_fp32 = true;
  const int layers = read_layer_count(config);
  const std::int64_t first = config.class_default({"moe_layer_start_index"}, 1, {0, kMostLayers});
  const std::int64_t last = config.plain({"moe_layer_end_index"}, -1, {-1, kMostLayers});
  const std::int64_t interval = config.plain({"moe_layer_interval"}, 1, {1, kMostLayers});
  for (int i = 0; i < layers; ++i) {
    style.moe_layers.push_back(i >= first && i <= (last < 0 ? layers - 1 : last) &&
                               (i + 1) % interval == 0);
  }
  build_decoder(config, spec, style);
}

void build_phimoe(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.norms = {{"input_layernorm.weight", "input_layernorm.bias"},
                 {"post_attention_layernorm.weight", "post_attention_layernorm.bias"}};
  style.head.norm_bias = true;
  style.head.head_bias = config.flag("lm_head_bias");
  style.moe = read_moe(config, "intermediate_size");
  build_decoder(config, spec, style);
}

void build_gpt_oss(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("attention_bias", true);
  style.attention.output_bias = style.attention.qkv_bias;
  style.sinks = true;
  style.sizes.head_dim = 64;
  style.rope.theta_default = 150000.0;
  style.rope.fp32_table = true;
  style.full_every = 2;
  style.moe = read_moe(config, "intermediate_size");
  style.moe->router_bias = true;
  style.moe->expert_bias = true;
  build_decoder(config, spec, style);
}

// Every fourth layer sees everything and has no rotary embedding, the others see their chunk.
void build_llama4(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.attention.output_bias = style.attention.qkv_bias;
  style.chunked = true;
  style.window_key = "attention_chunk_size";
  style.full_every = 4;
  style.local_rope = LocalRope::kOnlyLocal;
  style.rope.theta_default = 500000.0;
  style.sizes.head_dim = 128;
  style.moe = read_moe(config, "intermediate_size");
  // No key says so: one shared expert of the experts' width is always there.
  style.moe->shared_width = style.moe->expert_width;
  const int layers = read_layer_count(config);
  const std::int64_t step =
      config.class_default({"interleave_moe_layer_step"}, 1, {1, kMostLayers});
  for (int i = 0; i < layers; ++i) {
    style.moe_layers.push_back((i + 1) % step == 0);
  }
  Sizes sizes = read_sizes(config, spec, style.tie_default, style.sizes);
  sizes.width = config.plain({"intermediate_size_mlp"}, sizes.width, {1, kMostWidth});
  build_decoder(config, spec, style, sizes);
}

void build_deepseek_moe(const Config& config, ModelSpec& spec) {
  DecoderStyle style;
  style.attention.qkv_bias = config.flag("attention_bias");
  style.moe = read_moe(config, "moe_intermediate_size");
  style.moe->shared_width =
      style.moe->expert_width * config.plain({"n_shared_experts"}, 0, {0, 1024});
  style.moe_layers = read_moe_layers(config, read_layer_count(config));
  build_decoder(config, spec, style);
}

}  // namespace oomcast::models
