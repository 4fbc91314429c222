// The clock of a cluster, and what is written down to happen apart from steps, flows and arrivals.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>
#include <vector>

#include "sim/latency/fine_time.hpp"
#include "sim/run/serving_engine.hpp"

namespace oomcast::cluster {

struct Event {
  enum class Kind : std::uint8_t {
    kAgreed,      // `server` hears that the other side knows of the request, or has room
    kSetUp,       // the transfer of `request` may begin
    kFault,       // `number` of the setup's
    kSpeedAgain,  // a fault that slowed `server` is over
    kLeaseOver,   // the prefill server `server` keeps the KV of `request` no longer
  };
  FineSpan at;
  Kind kind = Kind::kAgreed;
  std::size_t server = 0;
  RequestId request = 0;
  std::size_t number = 0;
};

class Calendar {
 public:
  [[nodiscard]] FineSpan now() const { return now_; }
  // The clock does not go back.
  void go_on(FineSpan at) { now_ = std::max(now_, at); }

  void write(const Event& event) { entries_.push({event, next_sequence_++}); }
  [[nodiscard]] std::optional<FineSpan> next_at() const {
    return entries_.empty() ? std::nullopt : std::optional(entries_.top().event.at);
  }
  // The next one that is due; of equals the one that was written first.
  std::optional<Event> take_due() {
    if (entries_.empty() || entries_.top().event.at > now_) {
      return std::nullopt;
    }
    const Event event = entries_.top().event;
    entries_.pop();
    return event;
  }

 private:
  struct Entry {
    Event event;
    std::uint64_t sequence = 0;

    bool operator>(const Entry& other) const {
      return std::tie(event.at, sequence) > std::tie(other.event.at, other.sequence);
    }
  };

  FineSpan now_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> entries_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace oomcast::cluster
