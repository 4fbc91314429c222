// A workload to be run many times: read once, kept in memory, played with other arrivals.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "workloads/request_stream.hpp"

namespace oomcast::workloads {

// Any number of threads may play one at a time each.
class RecordedWorkload {
 public:
  // What one run changes; what is empty is as in the options.
  struct Change {
    std::optional<std::string> rate_scale;
    std::optional<std::string> prompt_scale;
    std::optional<std::int64_t> requests;
    std::optional<std::int64_t> closed_loop;
  };

  // Sessions that wait for answers, and more requests than can be kept, are read anew each time;
  // a warm-up too; standard input cannot be. Throws ConfigError as make_workload() does.
  explicit RecordedWorkload(WorkloadOptions options);

  // Throws ConfigError for a change that is no valid option.
  [[nodiscard]] std::unique_ptr<RequestStream> play(const Change& change) const;
  [[nodiscard]] std::unique_ptr<RequestStream> play() const { return play(Change{}); }
  // Requests a second between the first arrival and the last; 0 where there is no such span, or the
  // requests are not kept.
  [[nodiscard]] double own_rate() const;

 private:
  static constexpr std::size_t kMostRequests = 1'000'000;

  void keep();

  WorkloadOptions options_;
  bool is_kept_ = false;
  std::vector<TraceRequest> requests_;
  ReadSummary summary_;
};

}  // namespace oomcast::workloads
