// What tests of clusters share: given requests through a cluster, and what came of it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "tests/given_requests.hpp"

namespace oomcast::cluster {

inline ClusterSetup pair_of(Pool prefill, Pool decode) {
  return {std::move(prefill), std::move(decode), {}, RoutePolicy::kLeastLoaded, {}, {}};
}

using ClusterRun = KeptRun;

inline ClusterRun serve_cluster(const ClusterSetup& setup,
                                const std::vector<workloads::TraceRequest>& requests,
                                bool step_by_step) {
  GivenRequests stream(requests);
  KeptRows rows;
  ReplayOptions options;
  options.step_by_step = step_by_step;
  ClusterRun out;
  replay_cluster(setup, stream, rows, options, out.record);
  out.rows = std::move(rows.rows);
  return out;
}

inline AnyDeployment deployment_of(const std::string& line, const std::string& version) {
  DeploymentInput input;
  input.launch_line = line;
  input.gpu = "H100-80GB";
  input.engine_version = version;
  return resolve_input(input);
}

}  // namespace oomcast::cluster
