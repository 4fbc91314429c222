#include "sim/engines/trtllm/expert_parallel.hpp"

#include <algorithm>

namespace oomcast::trtllm {
namespace {

// Ranks map each other's memory over NVLink between machines: GB200 and GB300.
bool has_multi_node_nvlink(const models::GpuSpec& gpu) {
  return gpu.name.find("GB200") != std::string::npos || gpu.name.find("GB300") != std::string::npos;
}

comm::Payload payload_of(const models::ModelSpec& model) {
  const auto& quantization = model.quantization;
  if (!quantization || !quantization->weight_float) {
    return comm::Payload::kBf16;
  }
  return quantization->weight_bits == 4 ? comm::Payload::kNvfp4 : comm::Payload::kFp8;
}

}  // namespace

ExpertExchange expert_exchange(const Deployment& deployment) {
  const Mixture mixture = widest_mixture(*deployment.model);
  ExpertExchange out;
  if (mixture.ffn == nullptr || !deployment.attention_dp || deployment.tp == 1 ||
      mixture.ffn->experts % deployment.ep != 0) {
    return out;
  }
  out.senders = deployment.tp;
  out.shape = {deployment.ep, deployment.max_num_tokens, deployment.model->hidden,
               mixture.ffn->experts, mixture.ffn->experts_per_token};
  out.payload = payload_of(*deployment.model);
  // All-to-all takes whole experts, and more ranks than a token has picks.
  if (has_multi_node_nvlink(deployment.gpu) && deployment.ep == deployment.tp &&
      deployment.ep > mixture.ffn->experts_per_token) {
    out.kind = Exchange::kSparse;
    out.backend = deployment.rules.one_sided_exchange ? "NVLink one-sided" : "NVLink two-sided";
    out.buffers = deployment.rules.one_sided_exchange
                      ? comm::nvlink_one_sided(out.shape, out.payload)
                      : comm::nvlink_two_sided(out.shape, deployment.gpu.sm_count);
  } else {
    out.kind = Exchange::kAllGather;
    out.backend = "all-gather";
  }
  out.routing = deployment.assumed.routing;
  out.load = experts::expert_load(
      out.routing, {mixture.ffn->experts, 0, mixture.ffn->experts_per_token, deployment.ep,
                    mixture.layers, experts::Placing::kContiguous});
  return out;
}

}  // namespace oomcast::trtllm
