// The engine's running batch: requests in batch order that decode one token each per launch.
//
// Counters of its members are not touched launch by launch. A launch moves one number, launches(),
// and a result another, results(); a member that joined at launch j has written
//   kv.filled + launches() - j   tokens, and has   output + max(results() - j, 0)   of output.
// Who needs a new page at the next launch is counted by residue, who ends with a given result
// stands in a calendar. So a launch costs what changes, not what runs.
//
// A member leaves the counting (settle) with its counters written out: when it is retracted,
// preempted, mixed into a prefill, or done.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/engines/sglang/scheduler_request.hpp"

namespace oomcast::sglang {

// A request in a batch. The slot may have been given to another request since: then the serial
// differs, and the row stands for somebody who is gone.
struct Row {
  Slot slot = kNoSlot;
  std::uint64_t serial = 0;
  std::uint64_t order = 0;
};

class RunningBatch {
 public:
  RunningBatch(RequestSlots& slots, std::int64_t page)
      : slots_(&slots),
        page_(page),
        at_residue_(static_cast<std::size_t>(page <= kMaxBuckets ? page : 0)) {}

  // Flags of the engine's batch object. They start anew when another object takes its place.
  bool full = false;               // batch_is_full
  bool prefill_only = false;       // no member wants output
  std::int64_t extend_tokens = 0;  // of the prefill this object once was

  [[nodiscard]] Slot front() const { return front_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::int64_t unfinished() const { return size_ - finished_; }

  // Joins at the end. `pending`: a result in flight will add one output token before any launch.
  void join(Slot slot, bool pending);
  // Writes the counters out; they no longer run. No-op if they did not.
  void settle(Slot slot);
  void leave(Slot slot);  // settles and leaves the batch
  void mark_finished(Slot slot);
  // Puts the members into this order. Results in flight are still applied in the former one.
  void reorder(const std::vector<Slot>& order);
  // Takes the finished out; their slots are spare then. Whether there were any.
  bool drop_finished();

  [[nodiscard]] std::int64_t launches() const { return launches_; }
  [[nodiscard]] std::int64_t results() const { return results_; }
  void launch(std::int64_t times = 1) { launches_ += times; }
  void result(std::int64_t times = 1) { results_ += times; }

  [[nodiscard]] std::int64_t output(const Request& request) const {
    const bool counts = request.counting && results_ > request.joined;
    return request.output + (counts ? results_ - request.joined : 0);
  }
  [[nodiscard]] std::int64_t filled(const Request& request) const {
    return request.kv.filled + (request.counting ? launches_ - request.joined : 0);
  }
  [[nodiscard]] std::int64_t decodes(const Request& request) const {
    return request.decodes + (request.counting ? launches_ - request.joined : 0);
  }
  // Took part in the latest launch.
  [[nodiscard]] bool launched(const Request& request) const {
    return request.counting && request.joined < launches_;
  }
  // Members whose next token begins a page; `ahead` launches from now.
  [[nodiscard]] std::int64_t at_page_end(std::int64_t ahead = 0) const;
  // Sum over members of tokens written.
  [[nodiscard]] std::int64_t context() const { return context_ + counting_ * launches_; }

  // The member will end with the next result that has it, whatever the calendar said.
  void end_next(Slot slot);
  // Members that may end with result number `result` or before, in batch order. They leave the
  // calendar; who does not end after all is put back with calendar_again().
  std::vector<Row> take_due(std::int64_t result);
  void calendar_again(Slot slot);
  // Number of the first result with which somebody may end; kNever if nobody counts.
  [[nodiscard]] std::int64_t next_end();
  [[nodiscard]] bool has_finished() const { return finished_ > 0; }

 private:
  struct End {
    std::int64_t result = 0;
    Slot slot = kNoSlot;
    std::uint64_t join = 0;
  };
  static constexpr std::int64_t kMaxBuckets = 4096;

  [[nodiscard]] Request& at(Slot slot) const { return (*slots_)[slot]; }
  [[nodiscard]] std::int64_t residue(const Request& request) const;
  void push_end(Slot slot, std::int64_t result);
  void link_last(Slot slot);
  void unlink(Slot slot);

  RequestSlots* slots_;
  std::int64_t page_;
  Slot front_ = kNoSlot;
  Slot back_ = kNoSlot;
  std::int64_t size_ = 0;
  std::int64_t finished_ = 0;
  std::vector<Slot> done_;
  std::uint64_t next_order_ = 1;
  std::uint64_t next_join_ = 1;
  std::int64_t launches_ = 0;
  std::int64_t results_ = 0;
  std::int64_t counting_ = 0;
  std::int64_t context_ = 0;  // sum over counting members of kv.filled - joined
  std::vector<std::int64_t> at_residue_;
  std::vector<End> ends_;  // heap, earliest result first; members that left stay until found
};

// The output with which a request ends, at the latest with its next token.
std::int64_t last_output(const Request& request);

}  // namespace oomcast::sglang
