#include "sim/engines/vllm/kv_transfer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace oomcast::vllm {
namespace {

constexpr const char* kTransferFlag = "kv-transfer-config";

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

 private:
  void refuse(const char* key, std::string value, std::string expected, const char* reason) {
    problems_.add({"launch line", fmt::format("--{}: {}", kTransferFlag, key), std::move(value),
                   std::move(expected), reason});
  }

  const launch::Launch& launch_;
  Problems& problems_;
};

}  // namespace

std::optional<KvTransfer> kv_transfer(const launch::Launch& launch, Problems& problems) {
  const Json* given = launch.json(kTransferFlag);
  if (given == nullptr || given->empty()) {
    return std::nullopt;
  }
  using Connector = ConnectorConfig;
  TransferConfig config(launch, problems);
  KvTransfer transfer;
  Connector& connector = transfer.connector;
  connector.kind = config.choice<Connector::Kind>("kv_connector", "",
                                                  {{"NixlConnector", Connector::Kind::kNixl}},
                                                  "other connectors are not modelled yet");
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

std::optional<KvTransfer> kv_transfer(const launch::Launch& launch) {
  Problems none;
  auto transfer = kv_transfer(launch, none);
  OOMCAST_CHECK(none.empty(), "a launch that was checked: {}", to_string(none.found().front()));
  return transfer;
}

}  // namespace oomcast::vllm
