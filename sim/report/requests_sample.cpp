#include "sim/report/requests_sample.hpp"

#include <algorithm>

namespace oomcast::report {
namespace {

QuantileCurve curve(const LogHistogram& values) {
  QuantileCurve quantiles;
  constexpr int kParts = 100;
  for (int i = 0; i <= kParts && values.count() > 0; ++i) {
    quantiles.push_back(values.quantile(static_cast<double>(i) / kParts));
  }
  return quantiles;
}

}  // namespace

void RequestsSample::Largest::add(std::int64_t value, std::int64_t index,
                                  const FinishedRequest& request) {
  Entry entry{value, index, kept_.size()};
  if (kept_.size() < kKept) {
    kept_.push_back(request);
  } else if (larger(entry, smallest_first_.front())) {
    std::pop_heap(smallest_first_.begin(), smallest_first_.end(), larger);
    entry.place = smallest_first_.back().place;
    smallest_first_.pop_back();
    kept_[entry.place] = request;
  } else {
    return;
  }
  smallest_first_.push_back(entry);
  std::push_heap(smallest_first_.begin(), smallest_first_.end(), larger);
}

void RequestsSample::Largest::give_to(std::map<std::int64_t, FinishedRequest>& all) const {
  for (const Entry& entry : smallest_first_) {
    all.emplace(entry.index, kept_[entry.place]);
  }
}

void RequestsSample::EvenlySpaced::add(std::int64_t index, const FinishedRequest& request) {
  if (index % stride_ != 0) {
    return;
  }
  kept_.emplace_back(index, request);
  if (std::ssize(kept_) > kMost) {
    stride_ *= 2;
    std::erase_if(kept_, [this](const auto& entry) { return entry.first % stride_ != 0; });
  }
}

void RequestsSample::Measure::add(std::optional<std::int64_t> value, std::int64_t index,
                                  const FinishedRequest& request) {
  if (value) {
    all.add(*value);
    largest.add(*value, index, request);
  }
}

void RequestsSample::add(const FinishedRequest& request) {
  const std::int64_t index = total_++;
  even_.add(index, request);
  ttft_.add(request.ttft_ns(), index, request);
  tpot_.add(request.tpot_ns(), index, request);
  latency_.add(request.latency_ns(), index, request);
  if (request.preemptions > 0) {
    preempted_.add(request.preemptions, index, request);
  }
  if (request.outcome != "finished") {
    not_finished_.add(0, index, request);
  }
}

FinishedRequests RequestsSample::result() const {
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

}  // namespace oomcast::report
