// The requests of a run, as many as they are, as quantiles of all and a sample of them.
#pragma once

#include <memory>

#include "sim/report/finished_run.hpp"
#include "sim/report/requests_sample.hpp"
#include "sim/run/record.hpp"
#include "workloads/byte_source.hpp"

namespace oomcast::report {

// Throws ConfigError (file, line, column) at the first row that is none.
FinishedRequests read_requests(std::unique_ptr<workloads::LineReader> lines);

// While the run goes on: what read_requests() makes of the file of these rows.
class SampledRequests final : public RequestSink {
 public:
  void row(const RequestRow& row) override;
  [[nodiscard]] FinishedRequests result() const { return sample_.result(); }

 private:
  RequestsSample sample_;
  FinishedRequest request_;  // the latest; most are not kept
};

}  // namespace oomcast::report
