// NixlConnector, pull: a decode instance reads the blocks that a prefill instance holds for it.
// Sources: distributed/kv_transfer/kv_connector/v1/nixl/ pull_scheduler.py, base_scheduler.py.
#pragma once

#include <set>

#include "sim/engines/vllm/kv_connector.hpp"

namespace oomcast::vllm {

class NixlConnector final : public KvConnector {
 public:
  explicit NixlConnector(const SchedulerConfig& config);

  void added(Request& request) override;
  Match match(Request& request, std::int64_t local) override;
  void allocated(Request& request, std::int64_t external) override;
  bool ended(Request& request, End end, std::vector<Handoff>& handoffs) override;
  void plan_step(std::span<const Scheduled> scheduled, StepTransfers& transfers) override;

 private:
  // What is exchanged of a group's blocks: the window's, the running state's.
  void clip(std::size_t group, BlockIds& blocks, bool states) const;
  void plan_save(const Scheduled& scheduled, StepTransfers& transfers);

  ConnectorConfig config_;
  std::vector<KvGroup> groups_;
  bool has_states_ = false;
  // To be told with the next step.
  std::vector<Receive> receives_;
  std::vector<RequestId> notifies_;
  std::vector<RequestId> sends_;
  std::set<RequestId> saving_;  // blocks not all copied to the host buffer yet
};

}  // namespace oomcast::vllm
