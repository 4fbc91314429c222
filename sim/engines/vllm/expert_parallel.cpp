#include "sim/engines/vllm/expert_parallel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/comm/group.hpp"
#include "sim/engines/environment.hpp"
#include "sim/engines/vllm/resident.hpp"

namespace oomcast::vllm {
namespace {

using comm::Payload;

// Hidden sizes that the low-latency kernels are compiled for; others are rounded up.
constexpr std::array<std::int64_t, 8> kKernelWidths = {2048, 2560, 3072, 4096,
                                                       5120, 6144, 7168, 8192};

std::int64_t kernel_width(std::int64_t hidden) {
  const auto found = std::lower_bound(kKernelWidths.begin(), kKernelWidths.end(), hidden);
  return found == kKernelWidths.end() ? hidden : *found;
}

constexpr const char* kAllGather = "allgather_reducescatter";

std::string backend_of(const Deployment& deployment) {
  const std::string named = deployment.launch.text("all2all-backend").value_or(kAllGather);
  return named == "pplx" && deployment.rules.pplx_falls_back ? kAllGather : named;
}

bool is_batched(const std::string& backend) {
  return backend == "deepep_low_latency" || backend == "nixl_ep" || backend == "pplx";
}

class ExchangeReader {
 public:
  ExchangeReader(const Deployment& deployment, Problems& problems)
      : deployment_(deployment), problems_(problems), mixture_(widest_mixture(*deployment.model)) {}

  ExpertExchange read() {
    const bool fused = deployment_.launch.text("moe-backend").value_or("") == "deep_gemm_mega_moe";
    if (mixture_.ffn == nullptr || deployment_.ep == 1 ||
        (!deployment_.exchanges_tokens() && !fused)) {
      return {};
    }
    set_group();
    if (out_.shape.experts % out_.shape.ranks != 0) {
      return {};  // refused with the shards
    }
    const std::string backend = fused ? "deep_gemm_mega_moe" : backend_of(deployment_);
    out_.backend = backend;
    if (fused) {
      out_.kind = Exchange::kSparse;
      // Sized for a whole batch on every rank (models/deepseek_v4, get_symm_buffer).
      comm::DispatchShape whole = out_.shape;
      whole.tokens = deployment_.max_num_batched_tokens.count();
      out_.buffers = comm::mega_moe(whole, out_.payload, mixture_.ffn->expert_width);
    } else if (backend == "naive" || backend == kAllGather) {
      out_.kind = Exchange::kAllGather;
    } else if (backend.rfind("deepep", 0) == 0) {
      set_deep_ep();
    } else if (!set_other()) {
      problems_.add({"launch line", "--all2all-backend", backend,
                     "naive, allgather_reducescatter, pplx, deepep_high_throughput, "
                     "deepep_low_latency, deepep_v2, flashinfer_all2allv, "
                     "flashinfer_nvlink_two_sided, flashinfer_nvlink_one_sided or nixl_ep",
                     "buffers of other backends are not known"});
      return {};
    }
    out_.routing = deployment_.assumed.routing;
    out_.load = experts::expert_load(out_.routing, group());
    return std::move(out_);
  }

 private:
  void set_group() {
    out_.senders = deployment_.dp;
    comm::DispatchShape& shape = out_.shape;
    shape.ranks = deployment_.ep;
    shape.hidden = deployment_.model->hidden;
    shape.experts = mixture_.ffn->experts + deployment_.redundant_experts;
    shape.experts_per_token = mixture_.ffn->experts_per_token;
    // Each rank of a tensor group sends its part of the replica's tokens.
    shape.tokens = div_ceil(deployment_.max_num_batched_tokens.count(), deployment_.tp);
    const bool fp4 = deployment_.model->quantization &&
                     deployment_.model->quantization->weight_float &&
                     deployment_.model->quantization->weight_bits == 4;
    out_.payload = fp4 && deployment_.gpu.compute_major >= 10 ? Payload::kNvfp4
                   : quantises_activations(deployment_)       ? Payload::kFp8
                                                              : Payload::kBf16;
  }

  [[nodiscard]] experts::ExpertGroup group() const {
    experts::ExpertGroup group;
    group.experts = mixture_.ffn->experts;
    group.redundant = deployment_.redundant_experts;
    group.picks = mixture_.ffn->experts_per_token;
    group.ranks = deployment_.ep;
    group.layers = mixture_.layers;
    if (deployment_.launch.on("enable-eplb")) {
      group.placing = experts::Placing::kBalanced;
    } else if (deployment_.launch.text("expert-placement-strategy").value_or("") == "round_robin") {
      group.placing = experts::Placing::kRoundRobin;
    }
    return group;
  }

  void set_batched() {
    out_.kind = Exchange::kBatched;
    out_.shape.hidden = kernel_width(out_.shape.hidden);
    if (!deployment_.rules.dispatch_holds_batch) {
      out_.shape.tokens = variable("VLLM_MOE_DP_CHUNK_SIZE", 256, 1 << 20);
    }
    if (out_.payload == Payload::kNvfp4) {
      out_.payload = Payload::kBf16;
    }
  }

  void set_deep_ep() {
    const Bytes buffer = kMiB * variable("VLLM_DEEPEP_BUFFER_SIZE_MB", 1024, 1 << 20);
    if (out_.backend == "deepep_low_latency") {
      set_batched();
      out_.buffers = comm::deep_ep_buffer(buffer, comm::deep_ep_low_latency_hint(out_.shape));
    } else if (out_.backend == "deepep_v2") {
      out_.kind = Exchange::kSparse;
      out_.buffers = comm::deep_ep_elastic(out_.shape, out_.payload, {nodes(), true, true});
    } else {
      out_.kind = Exchange::kSparse;
      const bool within = nodes() == 1 || deployment_.launch
                                                  .variable(
                                                      "VLLM_DEEPEP_HIGH_THROUGHPUT_FORCE_"
                                                      "INTRA_NODE")
                                                  .value_or("0") == "1";
      out_.buffers = comm::deep_ep_buffer(buffer, within ? Bytes{0} : buffer);
    }
  }

  bool set_other() {
    const std::string& backend = out_.backend;
    if (backend == "pplx") {
      set_batched();
      out_.buffers = comm::pplx(out_.shape, out_.payload, deployment_.tp);
    } else if (backend == "nixl_ep") {
      set_batched();
      const std::int64_t most = variable("VLLM_NIXL_EP_MAX_NUM_RANKS", 32, 1 << 16);
      out_.buffers = comm::nixl_ep(out_.shape, std::max(most, out_.shape.ranks));
    } else if (backend == "flashinfer_all2allv" || backend == "flashinfer_nvlink_two_sided") {
      out_.kind = Exchange::kSparse;
      out_.buffers = comm::nvlink_two_sided(out_.shape, deployment_.gpu.sm_count);
    } else if (backend == "flashinfer_nvlink_one_sided") {
      out_.kind = Exchange::kSparse;
      out_.buffers = comm::nvlink_one_sided(out_.shape, out_.payload);
    } else {
      return false;
    }
    return true;
  }

  [[nodiscard]] std::int64_t nodes() const {
    return div_ceil(static_cast<std::int64_t>(deployment_.ep), comm::kCardsPerNode);
  }

  std::int64_t variable(const char* name, std::int64_t usual, std::int64_t most) {
    return number_variable<std::int64_t>(deployment_.launch, name, 1, most, problems_)
        .value_or(usual);
  }

  const Deployment& deployment_;
  Problems& problems_;
  Mixture mixture_;
  ExpertExchange out_;
};

}  // namespace

bool has_batched_experts(const Deployment& deployment) {
  return deployment.exchanges_tokens() && is_batched(backend_of(deployment));
}

ExpertExchange expert_exchange(const Deployment& deployment, Problems& problems) {
  try {
    return ExchangeReader(deployment, problems).read();
  } catch (const ConfigError& error) {
    problems.take(error);
    return {};
  }
}

}  // namespace oomcast::vllm
