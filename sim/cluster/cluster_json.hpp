// What a record says of a cluster beside its ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/core/json.hpp"

namespace oomcast::cluster {

struct ServerTotals {
  std::string role;
  std::int64_t first_rank = 0;
  bool alive = true;
  std::int64_t steps = 0;
  Bytes kv_peak;  // of the first rank
  Bytes kv_pool;
  Bytes sent;  // over all its ports
  Bytes received;
  std::int64_t most_flows = 0;  // at once on its ports, in one direction
};

// Servers, links and transfers.
OrderedJson cluster_json(const ClusterSetup& setup, const std::vector<ServerTotals>& servers,
                         const TransferTotals& transfers);

// `plan --json` of both pools as one: the prefill line's, with all ranks that differ, by role.
OrderedJson cluster_plan_json(const ClusterSetup& setup);

// The ranks of startups that never served.
void add_startups(const ClusterSetup& setup, RunRecord& record);

}  // namespace oomcast::cluster
