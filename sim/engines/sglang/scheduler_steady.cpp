// Many rounds at once, while all of them only decode the same rows.
#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/sglang/scheduler_impl.hpp"

namespace oomcast::sglang {

// No round from here on tries a prefill.
bool Scheduler::Impl::prefill_is_shut() const {
  if (waiting_.empty()) {
    return true;
  }
  if (preemption_) {
    return false;  // the flag is dropped in each round
  }
  return running_.full || (min_free_slots_ && free_rows_for(0) < *min_free_slots_);
}

bool Scheduler::Impl::is_steady() const {
  if (error_ != EngineError::kNone || in_flight_ != depth() - 1 || step_ == 0 || config_.detail ||
      kv_.windowed() || !aborted_.empty() || kv_.tree().has_queued_copies()) {
    return false;
  }
  const Batch& last = batch(step_ - 1);
  const bool last_decoded = last.kind == Kind::kDecode && last.leavers.empty() &&
                            (!overlap_ || last.live_rows == running_.size());
  const bool outside = !asking_.empty() || !parked_.empty() || !moving_.empty() ||
                       (config_.role == Role::kDecode && !waiting_.empty());
  return last_decoded && !outside && chunked_ == kNoSlot && decode_rounds_left_ == 0 &&
         !running_.empty() && !running_.has_finished() && prefill_is_shut();
}

std::int64_t Scheduler::Impl::steady_steps(std::int64_t limit) {
  if (!is_steady()) {
    return 0;
  }
  // Results come a round late under overlap, and who must end with the one in flight is left out of
  // the next launch: in both cases the round that applies an ending result is the first to differ.
  std::int64_t steps =
      std::min(limit, running_.next_end() - running_.launches() - (overlap_ ? 0 : 1));
  const std::int64_t page = kv_.page();
  const std::int64_t rows = running_.size();
  std::int64_t free = kv_.pools().full.free();
  if (page == 1) {
    return std::max<std::int64_t>(std::min(steps, free / rows), 0);
  }
  std::int64_t done = 0;
  for (; done < steps && rows * page <= free; ++done) {
    free -= running_.at_page_end(done) * page;
  }
  return done;
}

SteadyShape Scheduler::Impl::steady_shape() const {
  return {running_.size(), Tokens{running_.context() + running_.size()}};
}

const SteadyJump& Scheduler::Impl::advance_steady(std::int64_t n) {
  OOMCAST_CHECK(n >= 1 && is_steady(), "{} steady rounds are asked for in no steady state", n);
  const SteadyShape shape = steady_shape();
  jump_.first_step = step_;
  jump_.steps = n;
  jump_.decode_requests = shape.decode_requests;
  jump_.first_context = shape.first_context;
  const auto take = [&](std::int64_t slots) {
    OOMCAST_CHECK(kv_.take(slots), "{} slots for steady rounds, {} are free", slots,
                  kv_.pools().full.free());
  };
  take(running_.at_page_end() * kv_.page());
  jump_.first = slots();
  jump_.last_growth = 0;
  if (kv_.page() == 1) {
    take((n - 1) * running_.size());
    jump_.last_growth = n - 1;
  } else {
    for (std::int64_t i = 1; i < n; ++i) {
      const std::int64_t pages = running_.at_page_end(i);
      take(pages * kv_.page());
      jump_.last_growth = pages > 0 ? i : jump_.last_growth;
    }
  }
  jump_.last = slots();
  for (std::int64_t i = 0; i < n && ratio_ > ratio_min_; ++i) {
    ratio_ = std::max(ratio_ - ratio_decay_, ratio_min_);
  }
  running_.launch(n);
  running_.result(n);
  step_ += n;
  Batch& now = batch(step_ - 1);
  now.step = step_ - 1;
  now.kind = Kind::kDecode;
  now.rows.clear();
  now.leavers.clear();
  now.chunked = Row{};
  now.launch = running_.launches();
  now.live_rows = running_.size();
  now.extend_tokens = running_.extend_tokens;
  prefilled_tokens_ += n * running_.extend_tokens;
  if (preemption_) {
    running_.full = false;
  }
  return jump_;
}

}  // namespace oomcast::sglang
