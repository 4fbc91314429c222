// What --kv-transfer-config asks for, as far as it is modelled: NIXL between a prefill and a decode
// server (facts: vLLM PD 2 to 4).
#pragma once

#include <optional>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/connector.hpp"
#include "sim/launch/launch.hpp"

namespace oomcast::vllm {

struct KvTransfer {
  ConnectorConfig connector;
  // How long a prefill server keeps blocks that nobody fetches, from the request's end.
  Nanos lease = kSecond * 30;
};

// nullopt: no connector. What is not modelled, or would be refused, joins the problems.
std::optional<KvTransfer> kv_transfer(const launch::Launch& launch, Problems& problems);
// The same of a launch that was found to be fine.
std::optional<KvTransfer> kv_transfer(const launch::Launch& launch);

// Whether a server of this role can be the prefill side, or the decode side, of a pair.
constexpr bool plays(ConnectorConfig::Role role, bool prefill) {
  return role == ConnectorConfig::Role::kBoth ||
         (role == ConnectorConfig::Role::kProducer) == prefill;
}

}  // namespace oomcast::vllm
