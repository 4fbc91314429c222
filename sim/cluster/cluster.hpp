// Prefill and decode servers, a router and the network between them as one simulation: one clock,
// one calendar, each request's KV in exactly one hand at a time.
//
// Order of events at one instant: results of steps, by server; what the network and the calendar
// bring; arrivals in trace order; then the next scheduling, by server. So a run is the same on
// every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cluster/fabric.hpp"
#include "sim/cluster/fault.hpp"
#include "sim/cluster/router.hpp"
#include "sim/run/plan.hpp"
#include "sim/run/replay.hpp"

namespace oomcast::cluster {

// Servers with equal deployments; their startup is simulated once.
struct Pool {
  Plan plan;
  std::int64_t servers = 1;
  const StepTimeModel* step_times = nullptr;
};

struct ClusterSetup {
  Pool prefill;
  Pool decode;
  FabricOptions fabric;
  RoutePolicy route = RoutePolicy::kLeastLoaded;
  std::vector<Fault> faults;
  Bytes wire_token;  // see pairing.hpp
  // How often the router sends a request anew whose server or KV was lost before its client saw a
  // token.
  std::int64_t retries = 3;
};

// What became of transfers.
struct TransferTotals {
  std::int64_t begun = 0;
  std::int64_t done = 0;
  std::int64_t lost = 0;     // with a server, or dropped on the way
  std::int64_t retried = 0;  // requests sent anew
  Bytes bytes;               // of those done
  std::int64_t most_at_once = 0;
  LogHistogram room;      // ns from the arrival until the decode side has room
  LogHistogram prefill;   // ns from the arrival until the prompt is done
  LogHistogram transfer;  // ns from then until all KV is over
};

// Fills the record as replay() does; ranks of prefill servers come first, and `cluster` tells of
// servers, links and transfers. Pools whose startup failed are recorded as they ended.
void replay_cluster(ClusterSetup setup, workloads::RequestStream& stream, RequestSink& sink,
                    const ReplayOptions& options, RunRecord& record);

}  // namespace oomcast::cluster
