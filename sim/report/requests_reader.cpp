#include "sim/report/requests_reader.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "sim/core/error.hpp"
#include "sim/report/csv_columns.hpp"
#include "sim/run/histogram.hpp"

namespace oomcast::report {
namespace {

enum Column : std::size_t {
  kId,
  kArrival,
  kFirstScheduled,
  kFirstToken,
  kFinish,
  kInput,
  kOutput,
  kCached,
  kPreempted,
  kOutcome,
};

constexpr std::size_t kMostIdLetters = 200;

FinishedRequest request_of(const CsvColumns& csv) {
  FinishedRequest request;
  request.id = csv.text(kId).substr(0, kMostIdLetters);
  const auto arrival = csv.instant(kArrival);
  if (!arrival) {
    csv.refuse(kArrival, "", "seconds");
  }
  request.arrival_ns = *arrival;
  std::int64_t before = *arrival;
  const std::array<std::pair<std::size_t, std::int64_t*>, 3> instants = {
      {{kFirstScheduled, &request.first_scheduled_ns},
       {kFirstToken, &request.first_token_ns},
       {kFinish, &request.finish_ns}}};
  for (const auto& [column, into] : instants) {
    const auto at = csv.instant(column);
    if (at && *at < before) {
      csv.refuse(column, csv.text(column), "no earlier than what comes before it");
    }
    before = at.value_or(before);
    *into = at.value_or(-1);
  }
  request.input_tokens = csv.count(kInput);
  request.output_tokens = csv.count(kOutput);
  request.cached_tokens = csv.count(kCached);
  request.preemptions = csv.count(kPreempted);
  request.outcome = csv.text(kOutcome).substr(0, kMostIdLetters);
  return request;
}

// The requests with the largest values of one measure, the earlier of equals.
class Largest {
 public:
  static constexpr std::size_t kKept = 250;

  void add(std::int64_t value, std::int64_t index, const FinishedRequest& request) {
    const auto key = std::pair(value, -index);
    if (kept_.size() == kKept && key < kept_.begin()->first) {
      return;
    }
    kept_.emplace(key, request);
    if (kept_.size() > kKept) {
      kept_.erase(kept_.begin());
    }
  }
  void give_to(std::map<std::int64_t, FinishedRequest>& all) const {
    for (const auto& [key, request] : kept_) {
      all.emplace(-key.second, request);
    }
  }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, FinishedRequest> kept_;
};

// Every request while they are few; then every second, every fourth, ...
class EvenlySpaced {
 public:
  static constexpr std::int64_t kMost = 5'000;

  void add(std::int64_t index, const FinishedRequest& request) {
    if (index % stride_ != 0) {
      return;
    }
    kept_.emplace_back(index, request);
    if (std::ssize(kept_) > kMost) {
      stride_ *= 2;
      std::erase_if(kept_, [this](const auto& entry) { return entry.first % stride_ != 0; });
    }
  }
  void give_to(std::map<std::int64_t, FinishedRequest>& all) const {
    all.insert(kept_.begin(), kept_.end());
  }

 private:
  std::int64_t stride_ = 1;
  std::vector<std::pair<std::int64_t, FinishedRequest>> kept_;
};

class Sample {
 public:
  void add(const FinishedRequest& request) {
    const std::int64_t index = total_++;
    even_.add(index, request);
    measure(ttft_, request.ttft_ns(), index, request);
    measure(tpot_, request.tpot_ns(), index, request);
    measure(latency_, request.latency_ns(), index, request);
    if (request.preemptions > 0) {
      preempted_.add(request.preemptions, index, request);
    }
    if (request.outcome != "finished") {
      not_finished_.add(0, index, request);
    }
  }

  [[nodiscard]] FinishedRequests result() const {
    FinishedRequests out;
    out.total = total_;
    std::map<std::int64_t, FinishedRequest> all;
    even_.give_to(all);
    for (const Largest* largest :
         {&ttft_.largest, &tpot_.largest, &latency_.largest, &preempted_, &not_finished_}) {
      largest->give_to(all);
    }
    out.kept.reserve(all.size());
    for (auto& [index, request] : all) {
      out.kept.push_back(std::move(request));
    }
    out.ttft = curve(ttft_.all);
    out.tpot = curve(tpot_.all);
    out.latency = curve(latency_.all);
    return out;
  }

 private:
  struct Measure {
    LogHistogram all;
    Largest largest;
  };

  static void measure(Measure& into, std::optional<std::int64_t> value, std::int64_t index,
                      const FinishedRequest& request) {
    if (value) {
      into.all.add(*value);
      into.largest.add(*value, index, request);
    }
  }

  static QuantileCurve curve(const LogHistogram& values) {
    QuantileCurve quantiles;
    constexpr int kParts = 100;
    for (int i = 0; i <= kParts && values.count() > 0; ++i) {
      quantiles.push_back(values.quantile(static_cast<double>(i) / kParts));
    }
    return quantiles;
  }

  std::int64_t total_ = 0;
  EvenlySpaced even_;
  Measure ttft_;
  Measure tpot_;
  Measure latency_;
  Largest preempted_;
  Largest not_finished_;
};

}  // namespace

std::optional<std::int64_t> FinishedRequest::ttft_ns() const {
  return first_token_ns < 0 ? std::nullopt : std::optional(first_token_ns - arrival_ns);
}

std::optional<std::int64_t> FinishedRequest::tpot_ns() const {
  return first_token_ns < 0 || finish_ns < 0 || output_tokens < 2
             ? std::nullopt
             : std::optional((finish_ns - first_token_ns) / (output_tokens - 1));
}

std::optional<std::int64_t> FinishedRequest::latency_ns() const {
  return finish_ns < 0 ? std::nullopt : std::optional(finish_ns - arrival_ns);
}

FinishedRequests read_requests(std::unique_ptr<workloads::LineReader> lines) {
  CsvColumns csv(std::move(lines),
                 {"id", "arrival_s", "first_scheduled_s", "first_token_s", "finish_s",
                  "input_tokens", "output_tokens", "cached_tokens", "preemptions", "outcome"});
  Sample sample;
  while (csv.next()) {
    sample.add(request_of(csv));
  }
  return sample.result();
}

}  // namespace oomcast::report
