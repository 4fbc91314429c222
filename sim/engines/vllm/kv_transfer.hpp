// What --kv-transfer-config and --kv-offloading-size ask for, as far as it is modelled: NIXL
// between a prefill and a decode server (facts: vLLM PD 2 to 4), or a host tier of one server (PD
// 5).
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
  // OffloadingConnector: host memory of all ranks together, and tokens of a chunk (0: a block's).
  // What the connector's settings say of chunks follows from the KV cache: host_pool.hpp.
  Bytes host_size;
  Tokens host_chunk;
};

// nullopt: no connector. What is not modelled, or would be refused, joins the problems.
std::optional<KvTransfer> kv_transfer(const launch::Launch& launch, Problems& problems);
// The same of a launch that was found to be fine.
std::optional<KvTransfer> kv_transfer(const launch::Launch& launch);

// Whether a server with this connector can be the prefill side, or the decode side, of a pair.
constexpr bool plays(const ConnectorConfig& connector, bool prefill) {
  return connector.kind == ConnectorConfig::Kind::kNixl &&
         (connector.role == ConnectorConfig::Role::kBoth ||
          (connector.role == ConnectorConfig::Role::kProducer) == prefill);
}

}  // namespace oomcast::vllm
