#include "sim/engines/sglang/expert_parallel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "models/attention_kinds.hpp"
#include "sim/comm/group.hpp"
#include "sim/engines/environment.hpp"

namespace oomcast::sglang {
namespace {

using comm::DeepEpPass;
using comm::DeepEpQueues;
using comm::Payload;

class ExchangeReader {
 public:
  ExchangeReader(Deployment& deployment, Problems& problems)
      : deployment_(deployment), problems_(problems), mixture_(widest_mixture(*deployment.model)) {}

  void settle() {
    const std::string backend = dispatch_backend(deployment_);
    if (backend == "none" || mixture_.ffn == nullptr || deployment_.ep == 1) {
      return;
    }
    set_group(backend);
    if (out_.shape.experts % out_.shape.ranks != 0) {
      return;  // refused with the shards
    }
    if (backend == "deepep") {
      set_deep_ep();
    } else if (backend == "mooncake") {
      out_.kind = Exchange::kBatched;
      out_.buffers = comm::mooncake_ep(out_.shape);
    } else if (backend == "nixl") {
      out_.kind = Exchange::kBatched;
      out_.buffers = comm::nixl_ep(out_.shape, out_.shape.ranks);
    } else if (backend == "flashinfer") {
      out_.kind = Exchange::kSparse;
      out_.shape.tokens = step_tokens();
      out_.buffers = comm::nvlink_one_sided(out_.shape, out_.payload);
    } else if (backend == "megamoe") {
      out_.kind = Exchange::kSparse;
      out_.shape.tokens = step_tokens();
      out_.buffers = comm::mega_moe(out_.shape, out_.payload, mixture_.ffn->expert_width);
    } else {
      problems_.add({"launch line", "--moe-a2a-backend", backend,
                     "none, deepep, mooncake, nixl, flashinfer or megamoe",
                     "buffers of other backends are not known"});
      return;
    }
    check_decodes();
    out_.routing = deployment_.assumed.routing;
    out_.load = experts::expert_load(out_.routing, group());
    deployment_.exchange = std::move(out_);
  }

 private:
  void set_group(const std::string& backend) {
    constexpr std::int64_t kMostTokens = 1024;  // asserted by the dispatcher
    out_.backend = backend;
    out_.senders = deployment_.attention_dp;
    out_.shape.ranks = deployment_.ep;
    out_.shape.hidden = deployment_.model->hidden;
    out_.shape.experts = mixture_.ffn->experts + deployment_.redundant_experts;
    out_.shape.experts_per_token = mixture_.ffn->experts_per_token;
    out_.shape.tokens =
        variable("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 128, kMostTokens);
    const auto& quantization = deployment_.model->quantization;
    out_.payload = quantization && quantization->method == "fp8" ? Payload::kFp8 : Payload::kBf16;
  }

  [[nodiscard]] experts::ExpertGroup group() const {
    return {mixture_.ffn->experts,
            deployment_.redundant_experts,
            mixture_.ffn->experts_per_token,
            deployment_.ep,
            mixture_.layers,
            deployment_.launch.on("enable-eplb") ? experts::Placing::kBalanced
                                                 : experts::Placing::kContiguous};
  }

  // Tokens of one rank in the largest step.
  [[nodiscard]] std::int64_t step_tokens() const {
    const std::int64_t prompt =
        deployment_.chunk > 0 ? deployment_.chunk : deployment_.max_prefill_tokens.count();
    const std::int64_t decodes =
        deployment_.decode_sizes.empty() ? 1 : deployment_.decode_sizes.back();
    return std::max(prompt, decodes);
  }

  // One buffer for the kernels of the mode, which a role may use in part only.
  void set_deep_ep() {
    const std::string mode = deployment_.launch.text("deepep-mode").value_or("auto");
    const bool normal = mode != "low_latency";
    const bool low_latency = mode != "normal";
    Bytes nvlink;
    Bytes rdma;
    if (normal) {
      const Json config = deep_ep_config();
      for (const DeepEpPass pass : {DeepEpPass::kDispatch, DeepEpPass::kCombine}) {
        const Queues queues = queues_of(config, pass);
        const std::int64_t token = 2 * out_.shape.hidden;
        nvlink = std::max(nvlink, comm::deep_ep_nvlink_hint(queues.queues, out_.shape.ranks, token,
                                                            queues.multiprocessors));
        rdma = std::max(rdma, comm::deep_ep_rdma_hint(queues.queues, out_.shape.ranks, token,
                                                      queues.multiprocessors));
      }
    }
    if (low_latency) {
      rdma = std::max(rdma, comm::deep_ep_low_latency_hint(out_.shape));
    }
    const bool prefills = deployment_.role != Role::kDecode;
    out_.kind = normal && (prefills || !low_latency) ? Exchange::kSparse : Exchange::kBatched;
    deployment_.batched_decodes = low_latency && (!normal || deployment_.role != Role::kPrefill);
    out_.buffers = comm::deep_ep_buffer(nvlink, rdma);
  }

  struct Queues {
    DeepEpQueues queues;
    std::int64_t multiprocessors = comm::kDeepEpMultiprocessors;
  };

  // --deepep-config: JSON, or a file of it.
  [[nodiscard]] Json deep_ep_config() const {
    const std::string text = deployment_.launch.text("deepep-config").value_or("");
    if (text.empty()) {
      return Json::object();
    }
    const bool inline_json = text.find('{') != std::string::npos;
    Json config = inline_json ? parse_json(text, "--deepep-config") : read_json_file(text);
    if (!config.is_object()) {
      throw ConfigError(Problem{"launch line", "--deepep-config", text, "a JSON object", ""});
    }
    return config;
  }

  // The library's, or those of --deepep-config.
  Queues queues_of(const Json& config, DeepEpPass pass) {
    const JsonView whole(config, "--deepep-config", "", problems_);
    const auto view =
        whole.object(pass == DeepEpPass::kDispatch ? "normal_dispatch" : "normal_combine");
    if (!view) {
      return {comm::deep_ep_queues(out_.shape.ranks, pass), comm::kDeepEpMultiprocessors};
    }
    constexpr std::int64_t kMost = 1 << 16;
    constexpr std::int64_t kMostMultiprocessors = 1024;
    const auto read = [&](const char* key, std::int64_t low, std::int64_t high) {
      if (!view->has(key)) {
        view->complain(key, "a number");
      }
      return view->integer(key, low, high).value_or(low);
    };
    Queues out;
    out.multiprocessors = read("num_sms", 2, kMostMultiprocessors);
    out.queues = {read("num_max_nvl_chunked_send_tokens", 1, kMost),
                  read("num_max_nvl_chunked_recv_tokens", 1, kMost),
                  read("num_max_rdma_chunked_send_tokens", 1, kMost),
                  read("num_max_rdma_chunked_recv_tokens", 1, kMost)};
    return out;
  }

  // The low-latency kernels refuse a batch of more tokens than they have slots for.
  void check_decodes() {
    std::vector<std::int64_t>& sizes = deployment_.decode_sizes;
    const std::int64_t most = out_.shape.tokens;
    const bool batched = out_.kind == Exchange::kBatched || deployment_.batched_decodes;
    if (!batched || sizes.empty() || sizes.back() <= most) {
      return;
    }
    if (sizes_given()) {
      problems_.add({"launch line", "--cuda-graph-max-bs", std::to_string(sizes.back()),
                     fmt::format("at most {}, the tokens that a rank can dispatch at once", most),
                     "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK raises it, to 1024 at most"});
      return;
    }
    std::erase_if(sizes, [&](std::int64_t size) { return size > most; });
    deployment_.assumptions.push_back(fmt::format(
        "decode graphs up to {} requests, the tokens that a rank can dispatch at once", most));
  }

  [[nodiscard]] bool sizes_given() const {
    constexpr std::array<const char*, 4> kFlags = {"cuda-graph-bs", "cuda-graph-bs-decode",
                                                   "cuda-graph-max-bs", "cuda-graph-max-bs-decode"};
    return std::any_of(kFlags.begin(), kFlags.end(), [&](const char* flag) {
      const auto found = deployment_.launch.flags.find(std::string_view(flag));
      return found != deployment_.launch.flags.end() &&
             found->second.origin == launch::Origin::kGiven;
    });
  }

  std::int64_t variable(const char* name, std::int64_t usual, std::int64_t most) {
    return number_variable<std::int64_t>(deployment_.launch, name, 1, most, problems_)
        .value_or(usual);
  }

  Deployment& deployment_;
  Problems& problems_;
  Mixture mixture_;
  ExpertExchange out_;
};

}  // namespace

std::string dispatch_backend(const Deployment& deployment) {
  if (!models::has_experts(*deployment.model)) {
    return "none";
  }
  if (deployment.launch.on("enable-deepep-moe")) {
    return "deepep";
  }
  return deployment.launch.text("moe-a2a-backend").value_or("none");
}

void settle_expert_exchange(Deployment& deployment, Problems& problems) {
  try {
    ExchangeReader(deployment, problems).settle();
  } catch (const ConfigError& error) {
    problems.take(error);
  }
}

}  // namespace oomcast::sglang
