// Step times of a deployment: what the roofline needs to know of its card, model and engine.
#include <algorithm>
#include <string>
#include <vector>

#include "models/attention_kinds.hpp"
#include "models/weights.hpp"
#include "sim/run/plan.hpp"

namespace oomcast {
namespace {

using models::AttentionKind;

// Bytes of one layer's keys and values of one token on a rank.
double kv_token_bytes(const vllm::Deployment& deployment, const models::KvLayerSpec& layer) {
  return static_cast<double>(deployment.kv_token_bytes(layer).count());
}
double kv_token_bytes(const sglang::Deployment& deployment, const models::KvLayerSpec& layer) {
  return sglang::token_bytes(deployment, layer);
}
double kv_token_bytes(const trtllm::Deployment& deployment, const models::KvLayerSpec& layer) {
  return static_cast<double>(deployment.kv_token_bytes(layer).count());
}

// Reading the KV of the layers of each kind, per rank.
template <typename Deployment>
std::vector<AttentionReads> attention_reads(const Deployment& deployment) {
  std::vector<AttentionReads> reads;
  for (int stage = 0; stage < deployment.pp; ++stage) {
    for (const models::KvLayerSpec& layer : deployment.kv_layers(stage)) {
      const std::int64_t window = models::has_window(layer.kind) ? layer.window.count() : 0;
      const auto bytes = kv_token_bytes(deployment, layer);
      const auto same = std::find_if(reads.begin(), reads.end(),
                                     [window](const auto& kind) { return kind.window == window; });
      if (same == reads.end()) {
        reads.push_back({bytes, window});
      } else {
        same->kv_bytes_per_token += bytes;
      }
    }
  }
  return reads;
}

// Matrices of one rank, split into the output head and all others.
template <typename Deployment>
void add_weights(const Deployment& deployment, RooflineTerms& terms) {
  const double element = static_cast<double>(models::bits_of(deployment.dtype)) / 8;
  for (int stage = 0; stage < deployment.pp; ++stage) {
    const models::RankWeights weights =
        models::weights_on_rank(*deployment.model, deployment.shard(stage));
    for (const models::TensorBytes& tensor : weights.tensors) {
      const auto bytes = static_cast<double>(tensor.bytes.count());
      const double parameters = bytes * 8 / static_cast<double>(models::bits_of(tensor.dtype));
      if (tensor.layer >= 0 && tensor.name.starts_with("mlp.experts")) {
        terms.expert_bytes += bytes;
        terms.expert_parameters += parameters;
      } else if (tensor.layer >= 0) {
        terms.linear_bytes += bytes;
        terms.linear_parameters += parameters;
      }
    }
  }
  if (const Mixture mixture = widest_mixture(*deployment.model); mixture.ffn != nullptr) {
    terms.picked_share = static_cast<double>(mixture.ffn->experts_per_token) /
                         static_cast<double>(mixture.ffn->experts);
  }
  const double rows = static_cast<double>(deployment.model->vocabulary) / deployment.tp;
  terms.head_parameters = rows * static_cast<double>(deployment.model->hidden);
  terms.head_bytes = terms.head_parameters * element;
}

// One-shot all-reduce inside a graph: latency and bus rate from public tables (step-time notes,
// section 3): NVLink reaches about half of one direction at TP2 and three quarters at TP8; PCIe
// boxes 19 GB/s for a pair and 3 beyond.
void add_communication(const EngineDeployment& deployment, RooflineTerms& terms) {
  if (deployment.tp == 1) {
    return;
  }
  terms.tensor_parallel = deployment.tp;
  terms.allreduces_per_layer = 2;
  terms.allreduce_latency_seconds = 6e-6;
  const double one_way = deployment.gpu.nvlink_bandwidth / 2;
  const double share = deployment.tp <= 2 ? 0.48 : deployment.tp <= 4 ? 0.6 : 0.73;
  constexpr double kPciePair = 19e9;
  constexpr double kPcieMany = 3e9;
  terms.allreduce_bytes_per_second =
      one_way > 0 ? share * one_way : (deployment.tp == 2 ? kPciePair : kPcieMany);
}

// FlashInfer's own kernels: TensorRT-LLM's, the default on Blackwell, are switched off.
bool uses_flashinfer_fa2(const vllm::Deployment& deployment) {
  const Json* asked = deployment.launch.json("attention-config", "use_trtllm_attention");
  const bool off = deployment.launch.variable("VLLM_USE_TRTLLM_ATTENTION").value_or("1") == "0" ||
                   (asked != nullptr && *asked == Json(false));
  return deployment.attention_backend == "FLASHINFER" &&
         (off || deployment.gpu.compute_major != 10);
}
template <typename Deployment>
bool uses_flashinfer_fa2(const Deployment& /*deployment*/) {
  return false;
}

template <typename Deployment>
double kv_read_efficiency(const Deployment& deployment) {
  const models::AttentionRates& rates = deployment.gpu.attention;
  if (deployment.kv_dtype != models::DType::kFloat8) {
    return rates.decode_16_8k;
  }
  if (uses_flashinfer_fa2(deployment) && rates.decode_flashinfer_fa2_fp8_kv > 0) {
    return rates.decode_flashinfer_fa2_fp8_kv;
  }
  return rates.decode_fp8_kv > 0 ? rates.decode_fp8_kv : rates.decode_16_8k;
}

// Matrices of 4-bit floats are multiplied as such from Blackwell on, of 8-bit floats where the card
// can; others are widened first.
models::GemmRates gemm_rates(const EngineDeployment& deployment) {
  const models::GpuSpec& gpu = deployment.gpu;
  const auto& quantization = deployment.model->quantization;
  if (!quantization || !quantization->weight_float) {
    return gpu.bf16;
  }
  if (quantization->weight_bits == 4) {
    return gpu.compute_major >= 10 && gpu.fp4.peak_flops > 0 ? gpu.fp4 : gpu.bf16;
  }
  if (quantization->weight_bits != 8 || !(gpu.fp8.peak_flops > 0)) {
    return gpu.bf16;
  }
  models::GemmRates rates = gpu.fp8;
  // Its tables' bandwidth holds quantisation outside of graphs (step-time notes, section 2).
  rates.bandwidth_share_large = gpu.bf16.bandwidth_share_large;
  return rates;
}

template <typename Deployment>
std::unique_ptr<StepTimeModel> roofline_of(const Deployment& deployment) {
  const models::GpuSpec& gpu = deployment.gpu;
  const models::ModelSpec& model = *deployment.model;
  RooflineTerms terms;
  terms.layers = model.layer_count();
  terms.hidden = static_cast<double>(model.hidden);
  double width = 0;
  double queries = 0;
  for (const models::LayerSpec& layer : model.layer_kinds) {
    width = std::max(width, static_cast<double>(layer.ffn.width));
    queries =
        std::max(queries, static_cast<double>(layer.attention.heads * layer.attention.head_dim));
  }
  terms.mlp_width_per_rank = width / deployment.tp;
  terms.query_width_per_rank = queries / deployment.tp;
  terms.element_bytes = static_cast<double>(models::bits_of(deployment.dtype)) / 8;
  add_weights(deployment, terms);
  terms.attention = attention_reads(deployment);
  terms.bandwidth = gpu.bandwidth;
  const models::GemmRates rates = gemm_rates(deployment);
  terms.peak_flops = rates.peak_flops;
  terms.attention_peak_flops = gpu.bf16.peak_flops;
  terms.memory_efficiency = rates.bandwidth_share_large;
  terms.compute_efficiency = rates.flops_share_2048;
  terms.kv_read_efficiency = kv_read_efficiency(deployment);
  terms.prefill_efficiency = gpu.attention.prefill_4k;
  const StepCosts& costs = deployment.rules.step_costs;
  terms.step_seconds = costs.step;
  terms.layer_seconds = costs.layer;
  terms.request_seconds = costs.request;
  if (uses_flashinfer_fa2(deployment)) {
    terms.mixed_step_layer_seconds = costs.flashinfer_prompt_layer;
  }
  add_communication(deployment, terms);
  return make_roofline(terms);
}

}  // namespace

std::unique_ptr<StepTimeModel> step_time_model(const AnyDeployment& deployment) {
  return std::visit([](const auto& engine) { return roofline_of(engine); }, deployment.engine());
}

std::unique_ptr<StepTimeModel> step_time_model(const Plan& plan) {
  return std::visit([](const auto& on) { return roofline_of(on.deployment); }, plan.engine());
}

}  // namespace oomcast
