// Decode steps, and what happens when slots for them are missing (managers/scheduler.py,
// update_running_batch; managers/schedule_batch.py, retract_decode).
#include <algorithm>
#include <tuple>

#include "sim/engines/sglang/scheduler_impl.hpp"

namespace oomcast::sglang {

bool Scheduler::Impl::choose_decode(Batch& next) {
  const bool no_output =
      running_.prefill_only && rules_.prefill_only_joins && config_.role == Role::kMixed;
  if (running_.empty() || no_output) {
    return false;
  }
  const std::int64_t before = running_.size();
  running_.drop_finished();
  const bool excluded =
      config_.role != Role::kDecode && rules_.skips_certain_finishes && exclude_certain_finishes();
  if (running_.empty()) {
    running_.full = false;
    return false;
  }
  if (kv_.has_room(decode_need())) {
    ratio_ = std::max(ratio_ - ratio_decay_, ratio_min_);
  } else if (excluded) {
    // Those about to end give enough back; nobody is retracted for one step.
    running_.full = false;
    return false;
  } else {
    retract();
  }
  if (running_.size() < before) {
    running_.full = false;
  }
  if (running_.empty() || error_ != EngineError::kNone || !take_decode_slots()) {
    return false;
  }
  running_.launch();
  next.kind = Kind::kDecode;
  next.launch = running_.launches();
  next.live_rows = running_.size();
  next.extend_tokens = running_.extend_tokens;
  plan_.decode_requests = running_.size();
  plan_.decode_context = Tokens{running_.context()};
  plan_.tokens = Tokens{running_.size()};
  plan_.requests = running_.size();
  plan_.sampled_rows = running_.size();
  plan_.sampling_requests = running_.size();
  if (config_.detail) {
    for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
      plan_.decoded.push_back(at(slot).id);
    }
  }
  return true;
}

// Under overlap, who must reach max_new_tokens with the result in flight needs no further decode.
// Whether there were any.
bool Scheduler::Impl::exclude_certain_finishes() {
  Batch* flying = pending();
  if (flying == nullptr) {
    return false;
  }
  const std::int64_t before = running_.size();
  const auto certain = [&](const Request& request) {
    return output(request) + 1 >= request.max_output;
  };
  if (flying->kind == Kind::kDecode) {
    for (const Row& row : running_.take_due(flying->launch)) {
      if (certain(at(row.slot))) {
        leave_running(row.slot, true);
      } else if (at(row.slot).aborting) {
        running_.end_next(row.slot);
      } else {
        running_.calendar_again(row.slot);
      }
    }
  } else {
    for (const Row& row : flying->rows) {
      if (present(row) && at(row.slot).running && !at(row.slot).finished && certain(at(row.slot))) {
        leave_running(row.slot, true);
      }
    }
  }
  return running_.size() < before;
}

std::int64_t Scheduler::Impl::decode_need() const {
  const std::int64_t page = kv_.page();
  if (rules_.pages_by_written || page == 1 || !overlap_) {
    return running_.at_page_end() * page;
  }
  // Prompt and outputs known by now: right after a prefill one more than is written.
  std::int64_t pages = 0;
  for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
    pages += length(at(slot)) % page == 0 ? 1 : 0;
  }
  return pages * page;
}

bool Scheduler::Impl::take_decode_slots() {
  slide_windows();
  const std::int64_t rows = running_.size();
  const std::int64_t page = kv_.page();
  // With pages, as if each row needed a new one.
  kv_.make_room(rows * page);
  if (!kv_.take(running_.at_page_end() * page)) {
    error_ = EngineError::kDecodeOutOfMemory;
    return false;
  }
  return true;
}

void Scheduler::Impl::slide_windows() {
  if (!kv_.windowed()) {
    return;
  }
  const std::int64_t interval = config_.swa_eviction_interval.count();
  for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
    Request& request = at(slot);
    const std::int64_t last = length(request) - 1;
    if (running_.decodes(request) >= 1 && last - kv_.window() >= request.kv.gone + interval) {
      kv_.slide(request.kv, last);
    }
  }
}

// A request leaves the running batch; whether the result of its decode in flight still counts.
void Scheduler::Impl::leave_running(Slot slot, bool result_counts) {
  Batch* flying = pending();
  if (flying != nullptr && flying->kind == Kind::kDecode && running_.launched(at(slot))) {
    if (result_counts) {
      flying->leavers.push_back(row_of(slot));
    } else {
      --flying->live_rows;
    }
  }
  running_.leave(slot);
}

// First to keep first: most output, then shortest prompt; retracted from the end.
std::vector<Slot> Scheduler::Impl::retraction_order() const {
  std::vector<std::pair<std::tuple<std::int64_t, std::int64_t, std::int64_t>, Slot>> keyed;
  for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
    const Request& request = at(slot);
    const bool by_priority = config_.retraction_policy == RetractionPolicy::kPriority;
    keyed.push_back({{by_priority ? rank(request) : 0, -output(request), request.prompt}, slot});
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& left, const auto& right) { return left.first < right.first; });
  std::vector<Slot> order;
  for (const auto& [key, slot] : keyed) {
    order.push_back(slot);
  }
  return order;
}

void Scheduler::Impl::retract() {
  std::vector<Slot> kept = retraction_order();
  std::vector<Slot> retracted;
  while (kept.size() > 1 && (retracted.empty() || !kv_.has_room(decode_need()))) {
    const Slot slot = kept.back();
    kept.pop_back();
    retracted.push_back(slot);
    leave_running(slot, false);
    give_up(slot, running_.size());
  }
  if (kept.size() <= 1 && !kv_.has_room(decode_need())) {
    if (!rules_.last_request_aborted) {
      error_ = EngineError::kRetractionFailed;
      return;
    }
    const Slot last = kept.back();
    kept.pop_back();
    leave_running(last, false);
    give_up(last, 0);
    drop(last);
  }
  // The engine keeps the survivors in this order.
  if (!retracted.empty()) {
    running_.reorder(kept);
  }
  std::int64_t output_sum = 0;
  std::int64_t most = 1;
  for (const Slot slot : kept) {
    output_sum += output(at(slot));
    most += at(slot).max_output;
  }
  output_sum += config_.retract_decode_steps * static_cast<std::int64_t>(kept.size());
  ratio_ = std::min(1.0, static_cast<double>(output_sum) / static_cast<double>(most));
  for (const Slot slot : retracted) {
    plan_.retracted.push_back(at(slot).id);
    if (config_.role == Role::kDecode) {
      parked_.push_back(slot);
    } else {
      enqueue(slot);
    }
  }
}

void Scheduler::Impl::give_up(Slot slot, std::int64_t remaining) {
  Request& request = at(slot);
  kv_.release(request.kv, published(request, request.computed), false, request.kv.filled);
  ++free_rows_;
  // What became evictable is used at once.
  kv_.make_room(remaining * config_.retract_decode_steps);
  request.kv = KvRow{};
  request.last_extend = 0;
  request.middle_chunks = 0;
  request.extends = 0;
  request.decodes = 0;
  request.matched = 0;
  request.retracted = true;
  request.resumed = true;
}

}  // namespace oomcast::sglang
