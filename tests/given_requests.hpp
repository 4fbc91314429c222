// Requests that a test writes down, and what came of them.
#pragma once

#include <utility>
#include <vector>

#include "sim/run/replay.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast {

// Given requests, by arrival; all are known from the start.
class GivenRequests final : public workloads::RequestStream {
 public:
  explicit GivenRequests(std::vector<workloads::TraceRequest> requests)
      : requests_(std::move(requests)) {}
  std::optional<SimTime> next_arrival() override {
    return at_end() ? std::nullopt : std::optional<SimTime>(requests_[next_].arrival);
  }
  void take(workloads::TraceRequest& out) override { out = requests_[next_++]; }
  bool at_end() override { return next_ == requests_.size(); }
  [[nodiscard]] workloads::ReadSummary summary() const override { return {}; }

 private:
  std::vector<workloads::TraceRequest> requests_;
  std::size_t next_ = 0;
};

class KeptRows final : public RequestSink {
 public:
  void row(const RequestRow& row) override { rows.push_back(row); }
  std::vector<RequestRow> rows;
};

struct KeptRun {
  RunRecord record;
  std::vector<RequestRow> rows;
};

inline KeptRun replay_kept(Plan plan, workloads::RequestStream& stream,
                           const ReplayOptions& options = {}) {
  const auto model = step_time_model(plan);
  KeptRows rows;
  KeptRun out;
  replay(std::move(plan), *model, stream, rows, options, out.record);
  out.rows = std::move(rows.rows);
  return out;
}

}  // namespace oomcast
