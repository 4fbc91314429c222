#include "workloads/recorded.hpp"

#include <algorithm>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast::workloads {
namespace {

class KeptStream final : public RequestStream {
 public:
  KeptStream(const std::vector<TraceRequest>& requests, const ReadSummary& summary)
      : requests_(requests), summary_(summary) {}

  std::optional<SimTime> next_arrival() override {
    return next_ < requests_.size() ? std::optional(requests_[next_].arrival) : std::nullopt;
  }
  void take(TraceRequest& out) override { out = requests_.at(next_++); }
  bool at_end() override { return next_ == requests_.size(); }
  [[nodiscard]] ReadSummary summary() const override { return summary_; }

 private:
  const std::vector<TraceRequest>& requests_;
  const ReadSummary& summary_;
  std::size_t next_ = 0;
};

[[noreturn]] void refuse_pipe(const char* option) {
  throw ConfigError(
      Problem{"command line", option, "-", "a file", "it is read again for every run"});
}

}  // namespace

RecordedWorkload::RecordedWorkload(WorkloadOptions options) : options_(std::move(options)) {
  if (options_.warm_up == "-") {
    refuse_pipe("--warm-up");
  }
  keep();
  const auto& traces = options_.traces;
  if (!is_kept_ && std::find(traces.begin(), traces.end(), "-") != traces.end()) {
    refuse_pipe("--trace");
  }
  static_cast<void>(play());  // what is wrong in all runs is told before the first
}

void RecordedWorkload::keep() {
  WorkloadOptions plain = options_;
  plain.rate_scale.clear();
  plain.prompt_scale.clear();
  plain.timeout.clear();
  plain.warm_up.clear();
  plain.closed_loop.reset();
  const auto stream = make_workload(plain);
  if (stream->is_closed_loop()) {
    return;
  }
  while (!stream->at_end()) {
    if (requests_.size() == kMostRequests) {
      requests_ = {};
      return;
    }
    stream->next_arrival();
    stream->take(requests_.emplace_back());
  }
  summary_ = stream->summary();
  is_kept_ = true;
}

std::unique_ptr<RequestStream> RecordedWorkload::play(const Change& change) const {
  WorkloadOptions options = options_;
  options.rate_scale = change.rate_scale.value_or(options.rate_scale);
  options.prompt_scale = change.prompt_scale.value_or(options.prompt_scale);
  options.requests = change.requests ? change.requests : options.requests;
  options.closed_loop = change.closed_loop ? change.closed_loop : options.closed_loop;
  if (!is_kept_) {
    return make_workload(options);
  }
  return with_options(std::make_unique<KeptStream>(requests_, summary_), options);
}

double RecordedWorkload::own_rate() const {
  if (requests_.size() < 2) {
    return 0;
  }
  const double seconds = requests_.back().arrival.seconds() - requests_.front().arrival.seconds();
  return seconds > 0 ? static_cast<double>(requests_.size() - 1) / seconds : 0;
}

}  // namespace oomcast::workloads
