#include "sim/engines/vllm/scheduler_lane.hpp"

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/scheduler_impl.hpp"

namespace oomcast::vllm {
namespace {

bool later(const Lane::End& left, const Lane::End& right) {
  return left.step != right.step ? left.step > right.step : left.order > right.order;
}
bool before(const Lane::Member& left, const Lane::Member& right) {
  return left.order < right.order;
}

}  // namespace

std::vector<Lane::Member>& Lane::bucket_of(const Request& request) {
  const auto size = static_cast<std::int64_t>(buckets_.size());
  const std::int64_t phase = (-request.lane_offset % size + size) % size;
  return buckets_[static_cast<std::size_t>(phase)];
}

void Lane::join(const Request& request, Slot slot, std::int64_t last_step, bool indexable) {
  std::vector<Member>& bucket = bucket_of(request);
  const Member member{request.order, slot};
  bucket.insert(std::upper_bound(bucket.begin(), bucket.end(), member, before), member);
  ends_.push_back({last_step, request.order, slot});
  std::push_heap(ends_.begin(), ends_.end(), later);
  ++size_;
  offsets_ += request.lane_offset;
  indexable_ += indexable ? 1 : 0;
}

void Lane::leave(const Request& request, bool indexable) {
  std::vector<Member>& bucket = bucket_of(request);
  const auto place =
      std::lower_bound(bucket.begin(), bucket.end(), Member{request.order, kNoSlot}, before);
  bucket.erase(place);
  --size_;
  offsets_ -= request.lane_offset;
  indexable_ -= indexable ? 1 : 0;
}

void Lane::pop_end() {
  std::pop_heap(ends_.begin(), ends_.end(), later);
  ends_.pop_back();
}

void Lane::clear() {
  for (std::vector<Member>& bucket : buckets_) {
    bucket.clear();
  }
  ends_.clear();
  size_ = 0;
  offsets_ = 0;
  indexable_ = 0;
}

bool Scheduler::Impl::may_join(const Request& request) const {
  const std::int64_t ahead = depth_ - 1;  // output tokens in flight, one with what came before it
  return !request.prefill_chunk && request.stale == 0 && (request.in_flight > 0) == (ahead > 0) &&
         request.placeholders == ahead && request.computed == request.known() - 1 + ahead &&
         request.output + ahead >= 1 && output_limit(request) - request.output - ahead >= 1;
}

// The lane stays a prefix of the running list that one step's budget can hold.
void Scheduler::Impl::enter_lane() {
  const std::int64_t room = std::min(max_scheduled_, max_batched_);
  if (by_priority_) {
    // A victim may stand anywhere, so it is all or nothing.
    for (Slot slot = first_loose_; slot != kNoSlot; slot = at(slot).next) {
      if (!may_join(at(slot))) {
        return;
      }
    }
    if (running_.size() > room) {
      return;
    }
  }
  while (first_loose_ != kNoSlot && lane_.size() < room && may_join(at(first_loose_))) {
    join_lane(first_loose_);
    first_loose_ = at(first_loose_).next;
  }
}

void Scheduler::Impl::join_lane(Slot slot) {
  Request& request = at(slot);
  request.lane = Request::Lane::kMember;
  request.lane_join = step_;
  request.lane_offset = request.computed - step_;
  const std::int64_t steps = output_limit(request) - request.output - (depth_ - 1);
  request.lane_indexable = request.indexable > request.groups.front().cached;
  lane_.join(request, slot, step_ + steps - 1, request.lane_indexable);
}

// Counters of a member before step `step`, all output of the steps before applied but what the
// pipeline holds.
void Scheduler::Impl::restore(Request& request, std::int64_t step) const {
  const std::int64_t ahead = depth_ - 1;
  request.computed = step + request.lane_offset;
  request.output = request.computed + 1 - ahead - request.prompt_len;
  request.placeholders = ahead;
  if (step > request.lane_join) {
    request.in_flight = ahead;  // until then it is what it was
  }
  if (kv_.caching()) {
    for (GroupTable& table : request.groups) {
      table.cached = std::max(table.cached, (request.computed - ahead) / kv_.block_size());
    }
  }
}

void Scheduler::Impl::leave_lane() {
  if (in_flight_ > 0) {
    // What the last batch holds of the lane becomes entries like any other.
    Batch& last = batch(in_flight_ - 1);
    std::vector<Entry> entries;
    if (last.lane_tokens > 0) {
      for (Slot slot = running_.front(); slot != first_loose_; slot = at(slot).next) {
        const Request& request = at(slot);
        if (request.lane != Request::Lane::kNone && request.lane_join <= last.step) {
          entries.push_back(
              {slot, request.serial, 1, 0, 0, ScheduledRequest::Kind::kContinued, true});
        }
      }
    }
    entries.insert(entries.end(), last.entries.begin(), last.entries.end());
    last.entries = std::move(entries);
    last.lane_tokens = 0;
    last.lane_ends.clear();
  }
  for (Slot slot = running_.front(); slot != first_loose_; slot = at(slot).next) {
    if (at(slot).lane == Request::Lane::kMember) {
      restore(at(slot), step_);
    }
    at(slot).lane = Request::Lane::kNone;
  }
  first_loose_ = running_.front();
  lane_.clear();
}

void Scheduler::Impl::schedule_lane() {
  const Tokens members{lane_.size()};
  plan_.tokens += members;
  plan_.requests += lane_.size();
  plan_.sampled_rows += lane_.size();
  plan_.sampling_requests += lane_.size();
  plan_.decode_requests += lane_.size();
  plan_.decode_tokens += members;
  plan_.decode_context += Tokens{lane_.computed(step_)} + members;
  current_->lane_tokens = lane_.size();
  lane_blocks(step_);
  end_lane_members(*current_);
}

// Blocks that members take in `step`, and those they fill and hash, in running order. Whether any
// were taken.
bool Scheduler::Impl::lane_blocks(std::int64_t step) {
  const std::vector<Lane::Member>& taking = lane_.at_boundary(step);
  for (const Lane::Member& member : taking) {
    kv_.take_block(at(member.slot));
  }
  if (lane_.indexable() > 0) {
    lane_hashes(step);
  }
  return !taking.empty();
}

void Scheduler::Impl::lane_hashes(std::int64_t step) {
  // Depth 1: the token of this step fills a block; it is known already. Depth 2: the block was
  // filled in the step before, whose output is known now.
  const std::int64_t filled = step + 1 - (depth_ - 1);
  for (const Lane::Member& member : lane_.at_boundary(filled)) {
    Request& request = at(member.slot);
    if (request.lane_indexable) {
      kv_.cache_filled(request, filled + request.lane_offset);
    }
  }
}

void Scheduler::Impl::end_lane_members(Batch& current) {
  while (lane_.has_end() && lane_.next_end().step <= step_) {
    const Lane::End end = lane_.next_end();
    lane_.pop_end();
    Request& request = at(end.slot);
    if (request.order != end.order || request.lane != Request::Lane::kMember) {
      continue;  // aborted
    }
    lane_.leave(request, request.lane_indexable);
    restore(request, step_ + 1);
    request.lane = Request::Lane::kDraining;
    current.lane_ends.push_back(end.slot);
  }
}

// Output of a batch that was the last one for these requests.
void Scheduler::Impl::finish_lane_members(const Batch& done) {
  for (const Slot slot : done.lane_ends) {
    Request& request = at(slot);
    request.output = output_limit(request);
    request.in_flight = 0;
    request.placeholders = 0;
    kv_.cache(request, request.computed);
    finish(slot);
  }
}

void Scheduler::Impl::abort_in_lane(Slot slot) {
  Request& request = at(slot);
  if (request.lane == Request::Lane::kNone) {
    return;
  }
  for (std::int64_t i = 0; i < in_flight_; ++i) {
    Batch& pending = batch(i);
    pending.lane_tokens -= pending.step >= request.lane_join ? 1 : 0;
    std::erase(pending.lane_ends, slot);
  }
  if (request.lane == Request::Lane::kMember) {
    lane_.leave(request, request.lane_indexable);
    restore(request, step_);
    request.order = 0;  // its end in the calendar is void
  }
}

bool Scheduler::Impl::pipeline_is_steady() const {
  if (lane_.size() == 0 || first_loose_ != kNoSlot || in_flight_ != depth_ - 1) {
    return false;
  }
  for (std::int64_t i = 0; i < in_flight_; ++i) {
    const Batch& pending = batch(i);
    for (const Entry& entry : pending.entries) {
      if (at(entry.slot).serial == entry.serial && !covered_by_lane(entry, pending.step)) {
        return false;
      }
    }
  }
  return true;
}

std::int64_t Scheduler::Impl::steady_steps(std::int64_t limit) {
  if (!pipeline_is_steady()) {
    return 0;
  }
  if (ends_in_flight() && waiting_.size() > 0) {
    return 0;  // whose place the head of the queue may take
  }
  const std::int64_t left = std::min(max_scheduled_, max_batched_) - lane_.size();
  bool hashes_matter = false;
  bool evictions_matter = false;
  if (waiting_.size() > 0 && running_.size() < max_active_ && left > 0) {
    if (!still_refused(max_scheduled_ - lane_.size())) {
      return 0;
    }
    hashes_matter = lane_.indexable() > 0;
    evictions_matter = !refused_.firm;
  }
  while (lane_.has_end()) {
    const Lane::End& end = lane_.next_end();
    if (at(end.slot).order == end.order && at(end.slot).lane == Request::Lane::kMember) {
      break;
    }
    lane_.pop_end();  // aborted
  }
  // Results of the last step come after it where batches are in flight.
  std::int64_t steps = std::min(limit, lane_.next_end().step - step_ + in_flight_);
  steps = steps_until_blocks_end(steps);
  // Blocks that are hashed or evicted on the way could let the head of the queue in.
  const auto hashes = [this](const Lane::Member& member) { return at(member.slot).lane_indexable; };
  for (std::int64_t i = 0; (hashes_matter || evictions_matter) && i < steps; ++i) {
    const std::vector<Lane::Member>& filling = lane_.at_boundary(step_ + i + 1 - (depth_ - 1));
    if ((hashes_matter && std::any_of(filling.begin(), filling.end(), hashes)) ||
        (evictions_matter && !lane_.at_boundary(step_ + i).empty())) {
      return i;
    }
  }
  return std::max<std::int64_t>(steps, 0);
}

// How many of `limit` steps find the blocks they need.
std::int64_t Scheduler::Impl::steps_until_blocks_end(std::int64_t limit) const {
  const auto groups = static_cast<std::int64_t>(kv_.num_groups());
  const std::int64_t free = kv_.available();
  const std::int64_t cycle = lane_.size() * groups;  // blocks in block_size steps
  const std::int64_t cycles = std::min(free / cycle, limit / kv_.block_size());
  std::int64_t left = free - cycles * cycle;
  std::int64_t steps = cycles * kv_.block_size();
  while (steps < limit) {
    left -= static_cast<std::int64_t>(lane_.at_boundary(step_ + steps).size()) * groups;
    if (left < 0) {
      break;
    }
    ++steps;
  }
  return std::min(steps, limit);
}

SteadyShape Scheduler::Impl::steady_shape() const {
  return {lane_.size(), Tokens{lane_.computed(step_) + lane_.size()}, ends_in_flight()};
}

bool Scheduler::Impl::ends_in_flight() const {
  return in_flight_ > 0 && !batch(in_flight_ - 1).lane_ends.empty();
}

const SteadyJump& Scheduler::Impl::advance_steady(std::int64_t n) {
  OOMCAST_CHECK(n >= 1 && lane_.size() > 0, "cannot advance {} steps with {} steady requests", n,
                lane_.size());
  jump_.first_step = step_;
  jump_.steps = n;
  jump_.decode_requests = steady_shape().decode_requests;
  jump_.first_context = steady_shape().first_context;
  lane_blocks(step_);
  jump_.first = jump_.second = jump_.last = blocks();
  jump_.last_growth = 0;
  clear_output();
  if (in_flight_ > 0) {
    take_results(batch(in_flight_ - 1));
  }
  jump_.first_token = output_.first_token;
  jump_.finished = output_.finished;
  for (std::int64_t i = 1; i < n; ++i) {
    if (lane_blocks(step_ + i)) {
      jump_.last_growth = i;
    }
    if (i == 1) {
      jump_.second = blocks();
    }
  }
  if (n > 1) {
    jump_.last = blocks();
  }
  step_ += n - 1;
  if (in_flight_ > 0) {
    Batch& last = batch(in_flight_ - 1);
    last.step = step_;
    last.lane_tokens = lane_.size();
    last.lane_ends.clear();
    last.entries.clear();
    end_lane_members(last);
  }
  ++step_;
  executed_steps_ += n;
  return jump_;
}

}  // namespace oomcast::vllm
