// Any number of requests as quantiles of all of them and a sample that keeps what one looks for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "sim/report/finished_run.hpp"
#include "sim/run/histogram.hpp"

namespace oomcast::report {

class RequestsSample {
 public:
  // In order of arrival.
  void add(const FinishedRequest& request);
  [[nodiscard]] FinishedRequests result() const;

 private:
  // The requests with the largest values of one measure, the earlier of equals.
  class Largest {
   public:
    static constexpr std::size_t kKept = 250;

    void add(std::int64_t value, std::int64_t index, const FinishedRequest& request);
    void give_to(std::map<std::int64_t, FinishedRequest>& all) const;

   private:
    struct Entry {
      std::int64_t value = 0;
      std::int64_t index = 0;
      std::size_t place = 0;  // in kept_
    };
    static bool larger(const Entry& left, const Entry& right) {
      return left.value != right.value ? left.value > right.value : left.index < right.index;
    }

    std::vector<Entry> smallest_first_;  // heap
    std::vector<FinishedRequest> kept_;  // in no order: where many come, one takes another's place
  };

  // Every request while they are few; then every second, every fourth, ...
  class EvenlySpaced {
   public:
    static constexpr std::int64_t kMost = 5'000;

    void add(std::int64_t index, const FinishedRequest& request);
    void give_to(std::map<std::int64_t, FinishedRequest>& all) const {
      all.insert(kept_.begin(), kept_.end());
    }

   private:
    std::int64_t stride_ = 1;
    std::vector<std::pair<std::int64_t, FinishedRequest>> kept_;
  };

  struct Measure {
    void add(std::optional<std::int64_t> value, std::int64_t index, const FinishedRequest& request);

    LogHistogram all;
    Largest largest;
  };

  std::int64_t total_ = 0;
  EvenlySpaced even_;
  Measure ttft_;
  Measure tpot_;
  Measure latency_;
  Largest preempted_;
  Largest not_finished_;
};

}  // namespace oomcast::report
