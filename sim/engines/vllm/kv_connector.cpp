#include "sim/engines/vllm/kv_connector.hpp"

#include "sim/core/error.hpp"
#include "sim/engines/vllm/connector_nixl.hpp"
#include "sim/engines/vllm/connector_offload.hpp"

namespace oomcast::vllm {

void StepTransfers::clear() {
  receives.clear();
  notifies.clear();
  saves.clear();
  sends.clear();
  loads.clear();
  stores.clear();
  flushes.clear();
}

void TransferReport::clear() {
  received.clear();
  sent.clear();
  jobs.clear();
}

std::unique_ptr<KvConnector> KvConnector::make(const SchedulerConfig& config,
                                               std::int64_t hash_block_size) {
  if (config.connector->kind == ConnectorConfig::Kind::kOffloading) {
    return std::make_unique<OffloadingConnector>(config, hash_block_size);
  }
  return std::make_unique<NixlConnector>(config);
}

std::optional<RequestId> KvConnector::job_done(JobId job) {
  OOMCAST_CHECK(false, "job {} is reported, but this connector has no jobs", job);
  return std::nullopt;
}

}  // namespace oomcast::vllm
