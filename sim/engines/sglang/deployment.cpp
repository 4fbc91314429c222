#include "sim/engines/sglang/deployment.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "models/attention_kinds.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/resolver.hpp"
#include "sim/engines/sglang/expert_parallel.hpp"
#include "sim/engines/sglang/host_pool.hpp"

namespace oomcast::sglang {

using models::AttentionKind;
using models::FfnKind;

namespace {

template <typename Test>
bool any_layer(const models::ModelSpec& model, Test test) {
  return std::any_of(model.layer_kinds.begin(), model.layer_kinds.end(), test);
}

}  // namespace

bool has_mla(const models::ModelSpec& model) {
  return models::has_attention(model, AttentionKind::kMla);
}

// Triton's kernels (quantization/mxfp4.py; layouts: hopper_value.py and hopper_scale.py of
// triton_kernels, which comes with the kernel package).
static models::Fp4Experts hopper_fp4_experts(const StartupRules& rules) {
  const bool canonical = rules.fp4_canonical_layout;
  const models::Fp4Experts::Swizzle swizzle{.value_rows = canonical ? 256 : 16,
                                            .value_columns = canonical ? 128 : 64,
                                            .scale_rows = 256,
                                            .scale_columns = rules.fp4_pads_scales ? 4 : 2,
                                            .pads_scales = rules.fp4_pads_scales,
                                            .canonical = canonical,
                                            .keeps_scales = true};
  return {.width_multiple = 64, .hidden_multiple = 1, .fp32_bias = true, .swizzle = swizzle};
}

models::ShardPlan Deployment::shard(int stage) const {
  models::ShardPlan plan;
  plan.tp = tp;
  plan.pp = pp;
  plan.pp_rank = stage;
  plan.ep = ep;
  plan.redundant_experts = redundant_experts;
  plan.attention_tp = attention_tp();
  plan.dense_tp = dense_tp;
  plan.head_tp = head_tp();
  plan.whole_shared_experts = dispatch_backend(*this) != "none";
  plan.dtype = dtype;
  plan.compute_major = gpu.compute_major;
  if (gpu.compute_major == 9) {
    plan.fp4_experts = hopper_fp4_experts(rules);
    if (widens_fp4_experts()) {
      plan.fp4_experts.fp32_bias = false;
      plan.fp4_experts.swizzle.reset();
    }
  }
  plan.interleaved_rope_factor = 1;
  const bool asked =
      launch.on("enable-multimodal") || !models::named(rules.towers_when_asked, *model);
  plan.towers = asked && !launch.on("language-only") && !launch.on("language-model-only");
  plan.whole_vision =
      launch.on("mm-enable-dp-encoder") && models::named(rules.encoder_data_parallel, *model);
  plan.indexer.own_rope = rules.indexer_rope;
  plan.indexer.key_in_16_bits = fuses_indexer_keys();
  if (!model->quantization) {
    plan.online_quantization = launch.text("quantization").value_or("");
  }
  return plan;
}

bool Deployment::widens_fp4_experts() const {
  return expert_backend == "triton" && model->quantization &&
         model->quantization->method == "mxfp4";
}

bool Deployment::fuses_indexer_keys() const {
  return rules.fused_indexer_keys &&
         std::none_of(model->ropes.begin(), model->ropes.end(),
                      [](const models::RopeSpec& rope) { return rope.of_indexer; });
}

ExpertExchange Deployment::exchange_in(bool decode) const {
  ExpertExchange out = exchange;
  if (decode && batched_decodes) {
    out.kind = Exchange::kBatched;
  }
  return out;
}

bool Deployment::fuses_shared_experts(const models::LayerSpec& layer) const {
  const models::FfnSpec& ffn = layer.ffn;
  // ModelOpt's lists name what stays in 16 bits (modelopt_quant.py can_fuse_shared_expert).
  const auto in_16_bits = [](const std::string& name) {
    return name.find("shared_expert") != std::string::npos &&
           name.find("shared_expert_gate") == std::string::npos;
  };
  const bool apart = model->quantization && model->quantization->method.starts_with("modelopt") &&
                     std::any_of(model->quantization->ignore.begin(),
                                 model->quantization->ignore.end(), in_16_bits);
  if (ffn.shared_width <= 0 || ffn.shared_width % ffn.expert_width != 0 || ep != 1 || apart ||
      exchange_in(false).kind != Exchange::kNone || launch.on("disable-shared-experts-fusion")) {
    return false;
  }
  return std::any_of(rules.fused_shared_experts.begin(), rules.fused_shared_experts.end(),
                     [&](const FusedSharedExperts& row) {
                       return row.experts.value_or(ffn.experts) == ffn.experts &&
                              models::named(row.architectures, *model);
                     });
}

std::vector<models::KvLayerSpec> Deployment::kv_layers(int stage) const {
  const bool shares = any_layer(
      *model, [](const auto& layer) { return layer.attention.kv_from_layer.has_value(); });
  std::vector<models::KvLayerSpec> layers;
  if (shares) {
    // Layers that reuse another's KV have slots of their own all the same.
    models::ModelSpec apart = *model;
    for (models::LayerSpec& layer : apart.layer_kinds) {
      layer.attention.kv_from_layer.reset();
    }
    layers = models::kv_layers(apart, shard(stage));
  } else {
    layers = models::kv_layers(*model, shard(stage));
  }
  for (models::KvLayerSpec& layer : layers) {
    // configs/mamba_utils.py: single precision unless the config or the user asks for another.
    layer.recurrent_dtype =
        state_dtype.value_or(layer.recurrent_dtype.value_or(models::DType::kFloat32));
  }
  return layers;
}

std::int64_t Deployment::extra_columns() const {
  constexpr std::int64_t kExtra = 4;
  if (!speculation) {
    return kExtra;
  }
  const std::int64_t usual = kExtra + speculation->draft_tokens;
  if (page_size.count() == 1) {
    return usual;
  }
  const std::int64_t at_once =
      std::max(speculation->steps * speculation->topk, speculation->draft_tokens);
  return std::max(usual, 2 * at_once + page_size.count() - 1);
}

OrderedJson Deployment::resolved() const {
  OrderedJson out;
  out["attention_backend"] = prefill_backend;
  out["decode_attention_backend"] = decode_backend;
  out["mem_fraction_static"] = mem_fraction;
  out["chunked_prefill_size"] = chunk;
  out["max_prefill_tokens"] = max_prefill_tokens.count();
  out["page_size"] = page_size.count();
  out["attn_dp_size"] = attention_dp;
  out["attn_tp_size"] = attention_tp();
  out["disaggregation_mode"] = role == Role::kMixed     ? "null"
                               : role == Role::kPrefill ? "prefill"
                                                        : "decode";
  out["decode_graph_bs"] = decode_sizes;
  out["prefill_graph_tokens"] = prefill_sizes;
  out["swa_full_tokens_ratio"] = window_ratio;
  out["mamba_full_memory_ratio"] = state_ratio;
  out["disable_radix_cache"] = !radix_cache;
  out["disable_overlap_schedule"] = !overlap;
  return out;
}

std::vector<Knob> Deployment::knobs() const {
  using Kind = Knob::Kind;
  std::vector<Knob> out = {
      {Kind::kLonger, "context-length", static_cast<double>(max_model_len.count())},
      {Kind::kFraction, "mem-fraction-static", mem_fraction},
  };
  if (!decode_sizes.empty()) {
    out.push_back({Kind::kLess, "cuda-graph-max-bs", static_cast<double>(decode_sizes.back())});
  }
  if (chunk > 0) {
    out.push_back({Kind::kLess, "chunked-prefill-size", static_cast<double>(chunk),
                   static_cast<double>(page_size.count())});
  }
  if (max_running) {
    out.push_back({Kind::kLess, "max-running-requests", static_cast<double>(*max_running)});
  }
  if (!decode_sizes.empty() || !prefill_sizes.empty()) {
    out.push_back({Kind::kSwitch, "disable-cuda-graph"});
  }
  if (const auto host = has_host_tier(*this) ? host_gigabytes_that_fit(*this) : std::nullopt) {
    out.push_back({Kind::kValue, "hicache-size", 0, 1, std::to_string(*host)});
  }
  add_float8_knob(*this, "fp8_e4m3", out);
  out.push_back({Kind::kCards, "tensor-parallel-size", static_cast<double>(tp)});
  return out;
}

}  // namespace oomcast::sglang
