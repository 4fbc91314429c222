#include "sim/report/requests_reader.hpp"

#include <array>
#include <charconv>

#include "sim/core/error.hpp"
#include "sim/report/csv_columns.hpp"

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

std::string as_read(std::string_view text) {
  return std::string(workloads::trimmed(text).substr(0, kMostIdLetters));
}

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

void SampledRequests::row(const RequestRow& row) {
  const auto nanos = [](SimTime at) { return at.since_start().count(); };
  FinishedRequest& request = request_;
  if (row.id.empty()) {
    std::array<char, 24> digits{};
    request.id.assign(digits.data(),
                      std::to_chars(digits.data(), digits.data() + digits.size(), row.index).ptr);
  } else {
    request.id = as_read(row.id);
  }
  request.arrival_ns = nanos(row.arrival);
  request.first_scheduled_ns = nanos(row.first_scheduled);
  request.first_token_ns = nanos(row.first_token);
  request.finish_ns = nanos(row.finish);
  request.input_tokens = row.input.count();
  request.output_tokens = row.output.count();
  request.cached_tokens = row.cached.count();
  request.preemptions = row.preemptions;
  request.outcome = name_of(row.outcome);
  sample_.add(request);
}

FinishedRequests read_requests(std::unique_ptr<workloads::LineReader> lines) {
  CsvColumns csv(std::move(lines),
                 {"id", "arrival_s", "first_scheduled_s", "first_token_s", "finish_s",
                  "input_tokens", "output_tokens", "cached_tokens", "preemptions", "outcome"});
  RequestsSample sample;
  while (csv.next()) {
    sample.add(request_of(csv));
  }
  return sample.result();
}

}  // namespace oomcast::report
