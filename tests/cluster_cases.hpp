// What tests of clusters share: given requests through a cluster, and what came of it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::cluster {

// Given requests, by arrival.
class GivenRequests final : public workloads::RequestStream {
 public:
  explicit GivenRequests(const std::vector<workloads::TraceRequest>& requests)
      : requests_(requests) {}
  std::optional<SimTime> next_arrival() override {
    return at_end() ? std::nullopt : std::optional<SimTime>(requests_[next_].arrival);
  }
  void take(workloads::TraceRequest& out) override { out = requests_[next_++]; }
  bool at_end() override { return next_ == requests_.size(); }
  [[nodiscard]] workloads::ReadSummary summary() const override { return {}; }

 private:
  const std::vector<workloads::TraceRequest>& requests_;
  std::size_t next_ = 0;
};

class KeptRows final : public RequestSink {
 public:
  void row(const RequestRow& row) override { rows.push_back(row); }
  std::vector<RequestRow> rows;
};

struct ClusterRun {
  RunRecord record;
  std::vector<RequestRow> rows;
};

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
