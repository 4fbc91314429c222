// Requests in flight, handed to the sink in order of arrival. Memory follows the span between the
// oldest unfinished request and the newest, never the length of the trace.
#pragma once

#include <cstdint>
#include <deque>

#include "sim/core/digest.hpp"
#include "sim/run/record.hpp"

namespace oomcast {

class RequestLog {
 public:
  RequestLog(RequestSink& sink, RunTotals& totals, Digest& digest)
      : sink_(&sink), totals_(&totals), digest_(&digest) {}

  // Indices come without gaps.
  RequestRow& open(std::int64_t index);
  [[nodiscard]] RequestRow& at(std::int64_t index);
  [[nodiscard]] bool is_open(std::int64_t index) const {
    return index >= first_ && !entries_[static_cast<std::size_t>(index - first_)].closed;
  }
  // The row is complete; it and those before it are handed on once all of them are.
  void close(std::int64_t index);
  // Visits the rows that are still open, in order.
  template <typename Visit>
  void for_each_open(Visit visit) {
    for (Entry& entry : entries_) {
      if (!entry.closed) {
        visit(entry.row);
      }
    }
  }
  // The run is over: everything left is handed on as it stands.
  void close_all();

 private:
  struct Entry {
    RequestRow row;
    bool closed = false;
  };
  void hand_on();

  RequestSink* sink_;
  RunTotals* totals_;
  Digest* digest_;
  std::int64_t first_ = 0;
  std::deque<Entry> entries_;
};

}  // namespace oomcast
