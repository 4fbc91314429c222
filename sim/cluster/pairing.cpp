#include "sim/cluster/pairing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "models/attention_kinds.hpp"
#include "sim/engines/sglang/cache_plan.hpp"
#include "sim/engines/vllm/kv_transfer.hpp"

namespace oomcast::cluster {
namespace {

constexpr const char* kPrefillLine = "--prefill line";
constexpr const char* kDecodeLine = "--decode line";

bool has_mla(const models::ModelSpec& model) { return sglang::has_mla(model); }

std::int64_t kv_heads(const models::ModelSpec& model) {
  std::int64_t heads = 1;
  for (const models::LayerSpec& layer : model.layer_kinds) {
    heads = std::max(heads, layer.attention.kv_heads);
  }
  return heads;
}

void check_role(const sglang::Deployment& deployment, sglang::Role role, const char* source,
                const char* name, Problems& problems) {
  if (deployment.role != role) {
    problems.add({source, "--disaggregation-mode",
                  deployment.launch.text("disaggregation-mode").value_or("null"), name,
                  fmt::format("add --disaggregation-mode {}", name)});
  }
}

void check_transport(const sglang::Deployment& prefill, const sglang::Deployment& decode,
                     Problems& problems) {
  constexpr const char* kFlag = "disaggregation-transfer-backend";
  const std::string here = decode.launch.text(kFlag).value_or("mooncake");
  const std::string there = prefill.launch.text(kFlag).value_or("mooncake");
  for (const auto& [source, name] :
       {std::pair(kPrefillLine, there), std::pair(kDecodeLine, here)}) {
    if (name == "fake" || name == "ascend" || name == "mori") {
      problems.add({source, fmt::format("--{}", kFlag), name, "mooncake or nixl",
                    "fake moves no KV; ascend and mori move that of other makers' cards"});
    }
  }
  if (here != there) {
    problems.add({kDecodeLine, fmt::format("--{}", kFlag), here, there + ", as the prefill line",
                  "two transports do not meet"});
  }
}

// disaggregation/common/conn.py: the decode server asks the bootstrap server of the other side, and
// compares (0.5.23).
void check_layout(const sglang::Deployment& prefill, const sglang::Deployment& decode,
                  Problems& problems) {
  if (prefill.page_size != decode.page_size) {
    problems.add({kDecodeLine, "--page-size", std::to_string(decode.page_size.count()),
                  std::to_string(prefill.page_size.count()),
                  fmt::format("Page size mismatch: prefill server has page_size={}, but decode "
                              "server has page_size={}. Both servers must use the same "
                              "--page-size value.",
                              prefill.page_size.count(), decode.page_size.count())});
  }
  const std::int64_t most = std::max(prefill.attention_tp(), decode.attention_tp());
  const std::int64_t least = std::min(prefill.attention_tp(), decode.attention_tp());
  if (most % least != 0) {
    problems.add({kDecodeLine, "--tensor-parallel-size", std::to_string(decode.tp),
                  fmt::format("a divisor or a multiple of the prefill line's {} ranks of attention",
                              prefill.attention_tp()),
                  fmt::format("e.g. {}", prefill.attention_tp())});
  } else if (most != least && !has_mla(*decode.model) &&
             (decode.window_pool || models::has_recurrent_state(*decode.model))) {
    problems.add({kDecodeLine, "--tensor-parallel-size", std::to_string(decode.tp),
                  std::to_string(prefill.tp),
                  "PD Disaggregation does NOT support different TP sizes for non-MLA models' "
                  "extra/state pools yet."});
  }
}

void check_engines(const sglang::Deployment& prefill, const sglang::Deployment& decode,
                   Problems& problems) {
  check_role(prefill, sglang::Role::kPrefill, kPrefillLine, "prefill", problems);
  check_role(decode, sglang::Role::kDecode, kDecodeLine, "decode", problems);
  check_transport(prefill, decode, problems);
  check_layout(prefill, decode, problems);
}

void check_role(const vllm::Deployment& deployment, bool prefill, const char* source,
                Problems& problems) {
  const auto transfer = vllm::kv_transfer(deployment.launch);
  const char* role = prefill ? "kv_producer" : "kv_consumer";
  if (!transfer || !vllm::plays(transfer->connector, prefill)) {
    problems.add({source, "--kv-transfer-config",
                  deployment.launch.json("kv-transfer-config") == nullptr
                      ? "absent"
                      : deployment.launch.json("kv-transfer-config")->dump(),
                  fmt::format(R"({{"kv_connector":"NixlConnector","kv_role":"{}"}})", role),
                  "or kv_both"});
  }
}

// v1/nixl/base_worker.py and metadata.py: the handshake compares both sides (0.33.0; facts: vLLM
// PD 4).
void check_engines(const vllm::Deployment& prefill, const vllm::Deployment& decode,
                   Problems& problems) {
  check_role(prefill, true, kPrefillLine, problems);
  check_role(decode, false, kDecodeLine, problems);
  const auto refuse = [&](const char* flag, std::int64_t value, std::string expected,
                          std::string reason) {
    problems.add(
        {kDecodeLine, flag, std::to_string(value), std::move(expected), std::move(reason)});
  };
  if (decode.block_size.count() % prefill.block_size.count() != 0) {
    refuse("--block-size", decode.block_size.count(),
           fmt::format("a multiple of the prefill line's {}", prefill.block_size.count()),
           "blocks are moved in the prefill side's size");
  }
  const int most = std::max(prefill.tp, decode.tp);
  const int least = std::min(prefill.tp, decode.tp);
  if (most % least != 0) {
    refuse("--tensor-parallel-size", decode.tp,
           fmt::format("a divisor or a multiple of the prefill line's {}", prefill.tp),
           fmt::format("e.g. {}", prefill.tp));
  }
  const std::int64_t heads = kv_heads(*prefill.model);
  if (!has_mla(*prefill.model) && prefill.tp > decode.tp && prefill.tp > heads) {
    problems.add({kPrefillLine, "--tensor-parallel-size", std::to_string(prefill.tp),
                  fmt::format("at most {}, the KV heads", heads),
                  "a decode server with fewer ranks cannot gather replicated heads"});
  }
  if (decode.pp > 1) {
    refuse("--pipeline-parallel-size", decode.pp, "1", "NIXL does not pull into pipelines");
  }
}

template <typename Prefill, typename Decode>
void check_engines(const Prefill& prefill, const Decode& decode, Problems& problems) {
  const auto name = [](const EngineDeployment& deployment) {
    return std::string(launch::to_string(deployment.launch.engine));
  };
  problems.add({"command line", "--prefill and --decode",
                fmt::format("{} and {}", name(prefill), name(decode)),
                "two vllm lines with NIXL, or two sglang lines", "no other pair is modelled yet"});
}

void check_model(const EngineDeployment& prefill, const EngineDeployment& decode,
                 Problems& problems) {
  if (prefill.model->name != decode.model->name ||
      prefill.model->layer_kinds.size() != decode.model->layer_kinds.size()) {
    problems.add({kDecodeLine, "model", decode.launch.model, prefill.launch.model,
                  "KV of one model means nothing to another"});
  }
  if (prefill.kv_dtype != decode.kv_dtype) {
    const std::string wanted(models::name_of(prefill.kv_dtype));
    problems.add({kDecodeLine, "--kv-cache-dtype", std::string(models::name_of(decode.kv_dtype)),
                  wanted,
                  "kv_cache_dtype mismatch: both servers must use the same --kv-cache-dtype"});
  }
}

void check_link(const EngineDeployment& deployment, const char* source,
                const models::LinkSpec& link, std::int64_t cards_per_node, Problems& problems) {
  if (link.kind == models::LinkSpec::Kind::kNvlink && deployment.gpu.nvlink_bandwidth <= 0) {
    problems.add({source, "--interconnect", link.name, "pcie5 or a NIC, e.g. ib-ndr",
                  fmt::format("{} has no NVLink", deployment.gpu.name)});
  }
  if (!link.rdma && deployment.ep > 1 && cards(deployment) > cards_per_node) {
    problems.add({source, "--interconnect", link.name, "a link with RDMA, e.g. ib-ndr or roce-400",
                  fmt::format("expert parallelism over {} ranks crosses nodes of {} cards, and its "
                              "dispatch needs RDMA",
                              deployment.ep, cards_per_node)});
  }
}

// SGLang has its own, which formats below a byte need.
double token_bytes(const auto& deployment, const models::KvLayerSpec& layer) {
  return static_cast<double>(deployment.kv_token_bytes(layer).count());
}

int attention_ranks(const sglang::Deployment& deployment) { return deployment.attention_tp(); }
int attention_ranks(const EngineDeployment& deployment) { return deployment.tp; }

}  // namespace

std::int64_t cards(const EngineDeployment& deployment) {
  return std::int64_t{deployment.tp} * deployment.pp * deployment.dp;
}

void check_pair(const AnyDeployment& prefill, const AnyDeployment& decode,
                const models::LinkSpec& link, std::int64_t cards_per_node, Problems& problems) {
  std::visit([&](const auto& one, const auto& other) { check_engines(one, other, problems); },
             prefill.engine(), decode.engine());
  check_model(prefill.common(), decode.common(), problems);
  check_link(prefill.common(), kPrefillLine, link, cards_per_node, problems);
  check_link(decode.common(), kDecodeLine, link, cards_per_node, problems);
}

Bytes wire_token_bytes(const AnyDeployment& decode) {
  return std::visit(
      [](const auto& engine) {
        double of_rank = 0;
        for (int stage = 0; stage < engine.pp; ++stage) {
          for (const models::KvLayerSpec& layer : engine.kv_layers(stage)) {
            of_rank += token_bytes(engine, layer);
          }
        }
        return Bytes{std::llround(of_rank * attention_ranks(engine))};
      },
      decode.engine());
}

}  // namespace oomcast::cluster
