#include "sim/engines/vllm/kv_transfer.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace oomcast::vllm {
namespace {

constexpr const char* kTransferFlag = "kv-transfer-config";
constexpr const char* kSizeFlag = "kv-offloading-size";
constexpr const char* kBackendFlag = "kv-offloading-backend";
constexpr Bytes kMostHost{std::int64_t{1} << 50};

// The texts of the object, checked against what each may be.
class TransferConfig {
 public:
  TransferConfig(const launch::Launch& launch, Problems& problems)
      : launch_(launch), problems_(problems) {}

  template <typename Value>
  Value choice(const char* key, const char* fallback,
               const std::vector<std::pair<const char*, Value>>& values, const char* reason) {
    const Json* given = launch_.json(kTransferFlag, key);
    const std::string text = given == nullptr     ? fallback
                             : given->is_string() ? given->get<std::string>()
                                                  : given->dump();
    std::vector<std::string> names;
    for (const auto& [name, value] : values) {
      if (text == name) {
        return value;
      }
      names.emplace_back(name);
    }
    refuse(key, text, fmt::format("one of: {}", fmt::join(names, ", ")), reason);
    return values.front().second;
  }

  // An extra setting that must stay off.
  void off(const char* key, const char* reason) {
    const Json* given = launch_.json(kTransferFlag, key);
    if (given != nullptr && *given != Json(false)) {
      refuse(key, given->dump(), "false", reason);
    }
  }

  Nanos seconds(const char* key, Nanos fallback) {
    const Json* given = launch_.json(kTransferFlag, key);
    if (given == nullptr) {
      return fallback;
    }
    constexpr double kMost = 1e6;
    if (!given->is_number() || !(given->get<double>() > 0 && given->get<double>() <= kMost)) {
      refuse(key, given->dump(), "seconds, above 0 and at most 1e6", "");
      return fallback;
    }
    return Nanos{static_cast<std::int64_t>(given->get<double>() * 1e9)};
  }

  std::int64_t whole(const char* key, std::int64_t low, std::int64_t high, std::int64_t fallback) {
    const Json* given = launch_.json(kTransferFlag, key);
    if (given == nullptr) {
      return fallback;
    }
    // A number that needs 64 bits without a sign is above every bound here.
    const bool fits = given->is_number_integer() &&
                      (!given->is_number_unsigned() ||
                       given->get<std::uint64_t>() <= static_cast<std::uint64_t>(high));
    if (!fits || given->get<std::int64_t>() < low) {
      refuse(key, given->dump(), fmt::format("a whole number, {} to {}", low, high), "");
      return fallback;
    }
    return given->get<std::int64_t>();
  }

  // Settings that change what is kept where, and are not modelled.
  void absent(const char* key, const char* reason) {
    const Json* given = launch_.json(kTransferFlag, key);
    if (given != nullptr && !(given->is_structured() && given->empty())) {
      refuse(key, given->dump(), "a launch without it", reason);
    }
  }

  void refuse(const char* key, std::string value, std::string expected, const char* reason) {
    problems_.add({"launch line", fmt::format("--{}: {}", kTransferFlag, key), std::move(value),
                   std::move(expected), reason});
  }

 private:
  const launch::Launch& launch_;
  Problems& problems_;
};

// --kv-offloading-size, which stands for an OffloadingConnector of so many bytes. nullopt: refused.
std::optional<Bytes> offloading_size(const launch::Launch& launch, double gib, Problems& problems) {
  const std::size_t before = problems.found().size();
  const auto refuse = [&](const char* flag, std::string value, const char* expected,
                          const char* reason) {
    problems.add({"launch line", fmt::format("--{}", flag), std::move(value), expected, reason});
  };
  if (!(gib > 0 && gib <= to_gib(kMostHost))) {
    refuse(kSizeFlag, fmt::format("{}", gib), "GiB, above 0 and at most 1048576",
           "all ranks together");
  }
  const std::string backend = launch.text(kBackendFlag).value_or("native");
  if (backend != "native") {
    refuse(kBackendFlag, backend, "native", "stores and policies of others are not modelled");
  }
  const Json* connector = launch.json(kTransferFlag, "kv_connector");
  if (connector != nullptr && *connector != "OffloadingConnector") {
    refuse(kSizeFlag, fmt::format("{} beside {}", gib, connector->dump()), "one connector",
           "a size stands for the OffloadingConnector");
  }
  if (problems.found().size() > before) {
    return std::nullopt;
  }
  return Bytes{static_cast<std::int64_t>(gib * static_cast<double>(kGiB.count()))};
}

// Keys of OffloadingConnector and its CPUOffloadingSpec: distributed/kv_transfer/kv_connector/v1/
// offloading/ and v1/kv_offload/cpu/spec.py.
KvTransfer offloading(const launch::Launch& launch, std::optional<Bytes> size,
                      TransferConfig& config, Problems& problems) {
  using Connector = ConnectorConfig;
  KvTransfer transfer;
  Connector& connector = transfer.connector;
  connector.kind = Connector::Kind::kOffloading;
  if (!launch.at_least(0, 14)) {
    problems.add({"launch line", "OffloadingConnector", to_string(launch.version),
                  "vLLM 0.14.0 or newer", "before, its memory was counted in blocks"});
  }
  config.choice<Connector::Role>("kv_role", "kv_both", {{"kv_both", Connector::Role::kBoth}},
                                 "a host tier stores and loads");
  transfer.host_size = size.value_or(
      Bytes{config.whole("kv_connector_extra_config.cpu_bytes_to_use", 1, kMostHost.count(), 0)});
  if (!size &&
      launch.json(kTransferFlag, "kv_connector_extra_config.cpu_bytes_to_use") == nullptr) {
    config.refuse("kv_connector_extra_config.cpu_bytes_to_use", "absent",
                  "bytes of host memory, all ranks together", "the engine asks for it");
  }
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 20;
  transfer.host_chunk =
      Tokens{config.whole("kv_connector_extra_config.block_size", 1, kMostTokens, 0)};
  connector.eviction_policy = config.choice<Connector::Eviction>(
      "kv_connector_extra_config.eviction_policy", "lru",
      {{"lru", Connector::Eviction::kLru}, {"arc", Connector::Eviction::kArc}}, "");
  connector.store_threshold =
      config.whole("kv_connector_extra_config.store_threshold", 0, kMostTokens, 0);
  if (connector.store_threshold > 1 && !launch.at_least(0, 18)) {
    config.refuse("kv_connector_extra_config.store_threshold",
                  fmt::format("{}", connector.store_threshold), "vLLM 0.18.0 or newer", "");
  }
  // vllm-project/vllm#43797, merged at the end of May 2026: before, answers were stored too.
  const bool prompts = launch.at_least(0, 23);
  connector.offload_prompt_only =
      config.choice<bool>("kv_connector_extra_config.offload_prompt_only",
                          prompts ? "true" : "false", {{"true", true}, {"false", false}}, "") &&
      prompts;
  connector.stores_end_with_request = !launch.at_least(0, 21);
  connector.skips_unsampled_chunks = !launch.at_least(0, 16);
  connector.sync_load_budget = Bytes{config.whole(
      "kv_connector_extra_config.sync_load_budget_bytes", 0, std::int64_t{1} << 40, 0)};
  config.choice<bool>("kv_connector_extra_config.spec_name", "CPUOffloadingSpec",
                      {{"CPUOffloadingSpec", true}}, "other tiers are not modelled");
  config.absent("kv_connector_extra_config.secondary_tiers", "other tiers are not modelled");
  return transfer;
}

KvTransfer nixl(TransferConfig& config) {
  using Connector = ConnectorConfig;
  KvTransfer transfer;
  Connector& connector = transfer.connector;
  connector.role = config.choice<Connector::Role>("kv_role", "",
                                                  {{"kv_both", Connector::Role::kBoth},
                                                   {"kv_producer", Connector::Role::kProducer},
                                                   {"kv_consumer", Connector::Role::kConsumer}},
                                                  "a connector needs its role");
  connector.load_failure_policy = config.choice<Connector::LoadFailure>(
      "kv_load_failure_policy", "fail",
      {{"fail", Connector::LoadFailure::kFail}, {"recompute", Connector::LoadFailure::kRecompute}},
      "");
  connector.host_buffer =
      config.choice<bool>("kv_buffer_device", "cuda", {{"cuda", false}, {"cpu", true}}, "");
  config.off("kv_connector_extra_config.bidirectional_kv_xfer",
             "prefill servers that pull are not modelled in a cluster yet");
  transfer.lease = config.seconds("kv_connector_extra_config.kv_lease_duration", transfer.lease);
  return transfer;
}

}  // namespace

std::optional<KvTransfer> kv_transfer(const launch::Launch& launch, Problems& problems) {
  TransferConfig config(launch, problems);
  if (const auto gib = launch.number(kSizeFlag)) {
    const auto size = offloading_size(launch, *gib, problems);
    return size ? std::optional(offloading(launch, size, config, problems)) : std::nullopt;
  }
  const Json* given = launch.json(kTransferFlag);
  if (given == nullptr || given->empty()) {
    return std::nullopt;
  }
  using Kind = ConnectorConfig::Kind;
  const Kind kind = config.choice<Kind>(
      "kv_connector", "",
      {{"NixlConnector", Kind::kNixl}, {"OffloadingConnector", Kind::kOffloading}},
      "other connectors are not modelled yet");
  return kind == Kind::kOffloading ? offloading(launch, std::nullopt, config, problems)
                                   : nixl(config);
}

std::optional<KvTransfer> kv_transfer(const launch::Launch& launch) {
  Problems none;
  auto transfer = kv_transfer(launch, none);
  OOMCAST_CHECK(none.empty(), "a launch that was checked: {}", to_string(none.found().front()));
  return transfer;
}

}  // namespace oomcast::vllm
