// The engine's two lists of requests: running in order of admission, waiting by policy.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>

#include "sim/engines/vllm/scheduler_request.hpp"

namespace oomcast::vllm {

// Doubly linked through the requests' own next and previous.
class SlotList {
 public:
  explicit SlotList(RequestSlots& slots) : slots_(&slots) {}

  [[nodiscard]] Slot front() const { return front_; }
  [[nodiscard]] Slot back() const { return back_; }
  [[nodiscard]] std::int64_t size() const { return size_; }

  void push_back(Slot slot) { link(back_, slot, kNoSlot); }
  void push_front(Slot slot) { link(kNoSlot, slot, front_); }
  void erase(Slot slot) {
    const Request& gone = (*slots_)[slot];
    (gone.previous == kNoSlot ? front_ : (*slots_)[gone.previous].next) = gone.next;
    (gone.next == kNoSlot ? back_ : (*slots_)[gone.next].previous) = gone.previous;
    --size_;
  }

 private:
  void link(Slot before, Slot slot, Slot after) {
    Request& linked = (*slots_)[slot];
    linked.previous = before;
    linked.next = after;
    (before == kNoSlot ? front_ : (*slots_)[before].next) = slot;
    (after == kNoSlot ? back_ : (*slots_)[after].previous) = slot;
    ++size_;
  }

  RequestSlots* slots_;
  Slot front_ = kNoSlot;
  Slot back_ = kNoSlot;
  std::int64_t size_ = 0;
};

// First come, first served with preempted requests in front, or by (priority, arrival, tie).
class WaitingQueue {
 public:
  WaitingQueue(RequestSlots& slots, SchedulerConfig::Policy policy)
      : slots_(&slots), by_priority_(policy == SchedulerConfig::Policy::kPriority), list_(slots) {}

  [[nodiscard]] std::int64_t size() const {
    return by_priority_ ? static_cast<std::int64_t>(sorted_.size()) : list_.size();
  }
  [[nodiscard]] Slot front() const {
    if (by_priority_) {
      return sorted_.empty() ? kNoSlot : std::get<Slot>(*sorted_.begin());
    }
    return list_.front();
  }
  [[nodiscard]] Slot after(Slot slot) const {
    if (by_priority_) {
      const auto next = sorted_.upper_bound(key(slot));
      return next == sorted_.end() ? kNoSlot : std::get<Slot>(*next);
    }
    return (*slots_)[slot].next;
  }
  void add(Slot slot) { by_priority_ ? sort_in(slot) : list_.push_back(slot); }
  void put_first(Slot slot) { by_priority_ ? sort_in(slot) : list_.push_front(slot); }
  void erase(Slot slot) {
    if (by_priority_) {
      sorted_.erase(key(slot));
    } else {
      list_.erase(slot);
    }
  }

 private:
  using Key = std::tuple<std::int64_t, double, std::uint64_t, std::uint64_t, Slot>;

  [[nodiscard]] Key key(Slot slot) const {
    const Request& request = (*slots_)[slot];
    return {request.priority, request.arrival_time, request.tie_order, request.serial, slot};
  }
  void sort_in(Slot slot) { sorted_.insert(key(slot)); }

  RequestSlots* slots_;
  bool by_priority_;
  SlotList list_;
  std::set<Key> sorted_;
};

}  // namespace oomcast::vllm
