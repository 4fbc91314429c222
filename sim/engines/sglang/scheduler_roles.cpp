// Servers of a prefill/decode disaggregation (disaggregation/prefill.py and decode.py).
//
// Prefill: asking (before the handshake) -> queue -> chunks -> moving (KV in transfer, slots, row
// and lock kept) -> finished. Decode: asking (no slots) -> moving (slots taken, KV on its way) ->
// queue (arrived) -> running; who is retracted is parked, its KV on the host, and comes back first.
#include <algorithm>

#include "sim/engines/sglang/scheduler_impl.hpp"

namespace oomcast::sglang {

Added Scheduler::Impl::add_to_role(Slot slot, bool stub) {
  Request& request = at(slot);
  if (stub) {
    drop(slot);
    return Added::kTooLong;
  }
  if (config_.role == Role::kPrefill) {
    request.max_output = 1;  // decoding is another server's
  }
  asking_.push_back(slot);
  return Added::kQueued;
}

bool Scheduler::Impl::handshake_done(RequestId id) {
  idle_rounds_ = 0;
  const auto place = live_.find(id);
  if (place != live_.end()) {
    at(place->second).handshaken = true;
  }
  return place != live_.end();
}

bool Scheduler::Impl::transfer_done(RequestId id) {
  idle_rounds_ = 0;
  const auto place = live_.find(id);
  if (place != live_.end()) {
    at(place->second).transferred = true;
  }
  return place != live_.end();
}

bool Scheduler::Impl::transfer_over(const Request& request, std::int64_t now) const {
  return config_.transfer_steps ? now >= request.transfer_began + *config_.transfer_steps
                                : request.transferred;
}

// Whether the request was outside of queue and batches.
bool Scheduler::Impl::abort_in_role(Slot slot) {
  Request& request = at(slot);
  for (std::deque<Slot>* list : {&asking_, &parked_, &moving_}) {
    const auto place = std::find(list->begin(), list->end(), slot);
    if (place == list->end()) {
      continue;
    }
    list->erase(place);
    if (list == &moving_) {
      ++free_metadata_rows_;
    }
    if (request.kv.held) {
      kv_.release(request.kv, published(request, 0), false, request.kv.filled);
      ++free_rows_;
    }
    drop(slot);
    return true;
  }
  if (request.waiting) {
    if (config_.role == Role::kPrefill) {
      ++free_metadata_rows_;
    } else {
      kv_.release(request.kv, published(request, 0), false, request.kv.filled);
      ++free_rows_;
    }
  }
  return false;
}

// --- prefill

// A request without a metadata row does not hold up those behind it.
void Scheduler::Impl::take_bootstrapped() {
  std::deque<Slot> left;
  for (const Slot slot : asking_) {
    Request& request = at(slot);
    if (!request.handshaken || free_metadata_rows_ == 0) {
      left.push_back(slot);
      continue;
    }
    --free_metadata_rows_;
    plan_.transfers.bootstrapped.push_back(request.id);
    enqueue(slot);
  }
  asking_.swap(left);
}

void Scheduler::Impl::choose_batch_of_prefills(Batch& next) {
  take_bootstrapped();
  if (abort_chunked_) {
    ++free_metadata_rows_;
  }
  finish_chunk_abort();
  running_.full = false;
  publish_chunk();
  choose_prefill(next);
}

void Scheduler::Impl::apply_prompts(const Batch& done) {
  for (const Row& row : done.rows) {
    if (!present(row)) {
      continue;
    }
    Request& request = at(row.slot);
    if (request.middle_chunks > 0) {
      --request.middle_chunks;
      continue;
    }
    append_token(row.slot);
    kv_.publish(request.kv, published(request, std::min(request.computed, request.known)));
    request.kv.prefix = request.computed;
    request.transfer_began = done.step;
    moving_.push_back(row.slot);
    output_.sending.push_back(request.id);
  }
}

void Scheduler::Impl::finish_transfers() {
  std::deque<Slot> left;
  for (const Slot slot : moving_) {
    const bool aborting = at(slot).aborting;  // while its prompt was computed
    if (aborting || transfer_over(at(slot), step_ - 1)) {
      finish(slot, aborting ? FinishReason::kAbort : FinishReason::kLength, output_.finished);
      ++free_metadata_rows_;
    } else {
      left.push_back(slot);
    }
  }
  moving_.swap(left);
}

// --- decode

void Scheduler::Impl::choose_batch_of_decodes(Batch& next) {
  resume_parked();
  if (parked_.empty()) {
    preallocate();
    take_arrived();
  }
  join_arrived();
  choose_decode(next);
}

// Room kept for requests that hold slots, and `more` of them.
std::int64_t Scheduler::Impl::reserved_slots(std::size_t more) const {
  const std::size_t active = moving_.size() + waiting_.size() + more;
  return config_.num_reserved_decode_tokens.count() *
         (running_.size() + static_cast<std::int64_t>(active));
}

void Scheduler::Impl::allocate_prompt(Slot slot, std::int64_t tokens) {
  Request& request = at(slot);
  request.kv.held = true;
  --free_rows_;
  OOMCAST_CHECK(kv_.take(align_up(tokens, kv_.page())), "{} slots are admitted, {} are free",
                tokens, kv_.pools().full.free());
  request.kv.filled = tokens;
  request.computed = tokens;
  request.known = length(request);
}

void Scheduler::Impl::resume_parked() {
  std::vector<Slot> resumed;
  while (!parked_.empty() && free_rows_ > 0) {
    const Slot slot = parked_.front();
    Request& request = at(slot);
    const std::int64_t tokens = request.prompt + std::max<std::int64_t>(output(request) - 1, 0);
    const std::int64_t left = kv_.pools().full.free() - reserved_slots(resumed.size());
    if (align_up(tokens, kv_.page()) + config_.num_reserved_decode_tokens.count() > left) {
      break;
    }
    parked_.pop_front();
    allocate_prompt(slot, tokens);
    request.retracted = false;
    resumed.push_back(slot);
    plan_.transfers.resumed.push_back(request.id);
  }
  for (const Slot slot : resumed) {
    at(slot).waiting = true;
    waiting_.push_back(slot);
  }
}

// The head of those who ask gets slots while the reserve of all active requests stays, and while
// the longest running request could still be completed by retracting the others.
void Scheduler::Impl::preallocate() {
  std::int64_t own = 0;
  std::int64_t longest = 0;
  for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
    own += length(at(slot));
    longest = std::max(longest, std::min(at(slot).max_output, clip_) + at(slot).prompt);
  }
  const std::int64_t one = running_.empty() ? 0 : longest - own;
  std::vector<Slot> taken;
  std::deque<Slot> left_asking;
  bool open = true;
  for (const Slot slot : asking_) {
    Request& request = at(slot);
    if (open && request.handshaken) {
      const std::int64_t left =
          kv_.pools().full.free() - std::max(reserved_slots(taken.size()), one);
      const std::int64_t need = std::max(
          align_up(request.prompt, kv_.page()) + config_.num_reserved_decode_tokens.count(),
          request.prompt + std::min(request.max_output, clip_) - own);
      open = free_metadata_rows_ > 0 && free_rows_ > 0 && need <= left;
    }
    if (!open || !request.handshaken) {
      left_asking.push_back(slot);
      continue;
    }
    --free_metadata_rows_;
    allocate_prompt(slot, request.prompt);
    request.transfer_began = step_;
    taken.push_back(slot);
    plan_.transfers.preallocated.push_back(request.id);
  }
  asking_.swap(left_asking);
  moving_.insert(moving_.end(), taken.begin(), taken.end());
}

// The first output token comes with the KV.
void Scheduler::Impl::take_arrived() {
  std::deque<Slot> left;
  for (const Slot slot : moving_) {
    Request& request = at(slot);
    if (!transfer_over(request, step_)) {
      left.push_back(slot);
      continue;
    }
    ++free_metadata_rows_;
    ++request.output;
    request.waiting = true;
    waiting_.push_back(slot);
    plan_.transfers.arrived.push_back(request.id);
  }
  moving_.swap(left);
}

void Scheduler::Impl::join_arrived() {
  const std::int64_t places = config_.max_running_requests - running_.size();
  bool joined = false;
  for (std::int64_t i = 0; i < places && !waiting_.empty(); ++i) {
    const Slot slot = waiting_.front();
    waiting_.pop_front();
    Request& request = at(slot);
    request.waiting = false;
    request.known = length(request);
    plan_.transfers.joined.push_back(request.id);
    if (const std::optional<FinishReason> reason = finish_reason(request)) {
      finish(slot, *reason, plan_.transfers.finished);
      continue;
    }
    if (running_.empty() && !joined) {
      running_.full = false;
    }
    joined = true;
    running_.join(slot, false);
  }
}

}  // namespace oomcast::sglang
