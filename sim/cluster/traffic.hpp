// Requests on their way through a cluster: to the servers that serve them, and their KV from one
// side to the other.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "sim/cluster/calendar.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/cluster/fabric.hpp"
#include "sim/cluster/fleet.hpp"
#include "sim/cluster/journey.hpp"
#include "sim/cluster/kv_custody.hpp"
#include "sim/cluster/network.hpp"
#include "sim/run/request_desk.hpp"

namespace oomcast::cluster {

class Traffic final : public ServerListener {
 public:
  // All must outlive the traffic.
  Traffic(const ClusterSetup& setup, RequestDesk& desk, Calendar& calendar);

  [[nodiscard]] Fleet& fleet() { return fleet_; }
  [[nodiscard]] const Fabric& fabric() const { return fabric_; }
  [[nodiscard]] const Network& network() const { return network_; }
  [[nodiscard]] const TransferTotals& totals() const { return totals_; }
  [[nodiscard]] bool idle() const { return journeys_.empty(); }

  // A client asks.
  void arrive(const workloads::TraceRequest& request);
  // Takes the news of a server's handoff.
  void hear(std::size_t number);
  // Flows that are over by now.
  void pass_flows();
  void pass(const Event& event);

  // No token is in two hands or none, and each flow is a request's.
  void audit() const;

  void admitted(const Admission& admission, SimTime at) override;
  void preempted(RequestId id) override;
  void first_token(RequestId id, SimTime at) override;
  void ended(std::size_t server, const EndedRequest& request, SimTime at) override;

 private:
  using Role = KvHandoff::Role;

  [[nodiscard]] FineSpan now() const { return calendar_.now(); }
  [[nodiscard]] Journey* find(RequestId id);
  [[nodiscard]] RequestRow* row_of(RequestId id);

  void send(Journey journey);
  void send_on(RequestId id);
  Journey leave(RequestId id);
  void lose(RequestId id, RequestOutcome outcome);
  void give_up_prefill(RequestId id, const Journey& journey);

  // Of KV: traffic_transfers.cpp.
  void take_want(const KvHandoff::Want& want, Journey& journey);
  void take_piece(const KvHandoff::Piece& piece);
  void pump(RequestId id, Journey& journey);
  void stop_flow(Journey& journey);
  void hand_over(RequestId id, Journey& journey);
  void fail_transfer(RequestId id);

  // What is injected: traffic_faults.cpp.
  void inject(const Fault& fault);
  void kill(std::size_t number);
  void drop(std::size_t number);
  [[nodiscard]] double share_left(std::size_t number) const;
  template <typename Meant>
  [[nodiscard]] std::vector<RequestId> those(const Meant& meant) const;

  const ClusterSetup& setup_;
  RequestDesk& desk_;
  Calendar& calendar_;
  Network network_;
  Fabric fabric_;
  Fleet fleet_;
  RequestId next_id_ = 0;
  std::map<RequestId, Journey> journeys_;
  std::map<FlowId, RequestId> flows_;
  KvCustody custody_;
  TransferTotals totals_;
};

}  // namespace oomcast::cluster
