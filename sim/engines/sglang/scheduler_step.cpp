// The choice of the next batch (managers/scheduler.py, get_next_batch_to_run).
#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/sglang/scheduler_impl.hpp"

namespace oomcast::sglang {

Scheduler::Impl::Batch* Scheduler::Impl::pending() {
  return overlap_ && in_flight_ > 0 ? &batch(step_ - 1) : nullptr;
}

void Scheduler::Impl::start_plan() {
  StepPlan fresh;  // but for the buffers
  fresh.extended.swap(plan_.extended);
  fresh.admitted.swap(plan_.admitted);
  fresh.retracted.swap(plan_.retracted);
  fresh.preempted.swap(plan_.preempted);
  fresh.aborted.swap(plan_.aborted);
  fresh.decoded.swap(plan_.decoded);
  fresh.transfers = std::move(plan_.transfers);
  fresh.extended.clear();
  fresh.admitted.clear();
  TransferPlan& transfers = fresh.transfers;
  for (auto* ids :
       {&fresh.retracted, &fresh.preempted, &fresh.aborted, &fresh.decoded, &transfers.bootstrapped,
        &transfers.resumed, &transfers.preallocated, &transfers.arrived, &transfers.joined}) {
    ids->clear();
  }
  transfers.finished.clear();
  fresh.step = step_;
  plan_ = std::move(fresh);
}

const StepPlan& Scheduler::Impl::schedule() {
  OOMCAST_CHECK(in_flight_ < depth(), "{} batches in flight, the pipeline holds {}", in_flight_,
                depth());
  start_plan();
  Batch& next = batch(step_);
  next.step = step_;
  next.kind = Kind::kIdle;
  next.rows.clear();
  next.leavers.clear();
  next.chunked = Row{};
  plan_.host.write = begin_copy(kv_.take_writes());
  if (error_ == EngineError::kNone) {
    choose_batch(next);
    if (next.kind == Kind::kIdle) {
      on_no_batch();
    } else {
      idle_rounds_ = 0;
    }
  }
  prefilled_tokens_ += next.kind == Kind::kIdle ? 0 : next.extend_tokens;

  plan_.kind = next.kind;
  plan_.error = error_;
  plan_.aborted.swap(aborted_);
  if (chunked_ != kNoSlot) {
    plan_.chunked = at(chunked_).id;
  }
  plan_.host.awaited = Tokens{kv_.take_awaited()};
  plan_.host.load = begin_copy(kv_.take_loads());
  plan_.slots = slots();
  plan_.window_slots = window_slots();
  plan_.state_slots = state_slots();
  plan_.running = running_.unfinished();
  plan_.waiting = waiting();
  preemptions_ += static_cast<std::int64_t>(plan_.retracted.size() + plan_.preempted.size());
  ++step_;
  ++in_flight_;
#ifndef NDEBUG
  // Its cost is the state's, so not in each round.
  if (step_ % 64 == 0) {
    check_conservation();
  }
#endif
  return plan_;
}

void Scheduler::Impl::choose_batch(Batch& next) {
  if (config_.role == Role::kPrefill) {
    choose_batch_of_prefills(next);
    return;
  }
  if (config_.role == Role::kDecode) {
    choose_batch_of_decodes(next);
    return;
  }
  finish_chunk_abort();
  publish_chunk();
  merge_last();
  filter_running();
  if (defers_prefill() || !choose_prefill(next)) {
    choose_decode(next);
  }
  if (next.prefills()) {
    decode_rounds_left_ = config_.prefill_decode_interval;
  }
}

// Finished requests leave the running batch. Once only a batch that never decodes did it here: the
// others do before they decode.
void Scheduler::Impl::filter_running() {
  if (!rules_.filters_every_step && !(rules_.prefill_only_joins && running_.prefill_only)) {
    return;
  }
  if (running_.drop_finished() && (rules_.filters_every_step || running_.empty())) {
    running_.full = false;
  }
}

// After a prefill some rounds are for decodes, while enough of them run.
bool Scheduler::Impl::defers_prefill() {
  if (decode_rounds_left_ == 0) {
    return false;
  }
  if (running_.size() < config_.prefill_decode_interval_min_bs) {
    decode_rounds_left_ = 0;
    return false;
  }
  --decode_rounds_left_;
  return true;
}

// An abort of a half-prefilled prompt: its slots are free before anything else is chosen.
void Scheduler::Impl::finish_chunk_abort() {
  if (!abort_chunked_) {
    return;
  }
  abort_chunked_ = false;
  Request& request = at(chunked_);
  kv_.release(request.kv, published(request, 0), false, request.kv.filled);
  ++free_rows_;
  drop(chunked_);
  chunked_ = kNoSlot;
}

void Scheduler::Impl::publish_chunk() {
  if (chunked_ == kNoSlot) {
    return;
  }
  Request& request = at(chunked_);
  // A chunk that sat the last batch out has computed nothing new.
  if (rules_.unified_tree && request.computed <= request.kv.prefix) {
    return;
  }
  kv_.publish(request.kv, published(request, std::min(request.computed, request.known)));
  request.kv.prefix = request.computed;
}

// The last prefill batch joins the running batch, but for the unfinished prompt and those who ended
// with their first token. If nothing runs the batch itself becomes the running one, with its own
// flags.
void Scheduler::Impl::merge_last() {
  if (step_ == 0 || !batch(step_ - 1).prefills()) {
    return;
  }
  const Batch& last = batch(step_ - 1);
  std::vector<Slot> joining;
  for (const Row& row : last.rows) {
    const bool unfinished_prompt = row.slot == chunked_ || row.serial == last.chunked.serial;
    if (present(row) && !at(row.slot).finished && !unfinished_prompt) {
      joining.push_back(row.slot);
    }
  }
  if (joining.size() < last.rows.size()) {
    running_.full = false;
  }
  if (joining.empty() || (last.prefill_only && !rules_.prefill_only_joins)) {
    return;
  }
  if (running_.empty()) {
    running_.full = false;
    running_.extend_tokens = last.extend_tokens;
    running_.prefill_only = last.prefill_only;
  } else {
    running_.prefill_only = running_.prefill_only && last.prefill_only;
  }
  for (const Slot slot : joining) {
    running_.join(slot, overlap_ && at(slot).middle_chunks == 0);
  }
}

std::int64_t Scheduler::Impl::free_rows_for(std::int64_t held) const {
  const std::int64_t slots = config_.max_running_requests - running_.size();
  if (!rules_.counts_rows) {
    return slots;
  }
  return std::min(slots, free_rows_ + (rules_.counts_held_rows ? held : 0));
}

bool Scheduler::Impl::choose_prefill(Batch& next) {
  if (preemption_ || kv_.windowed() || (rules_.filters_every_step && running_.empty())) {
    running_.full = false;
  }
  if ((running_.full || waiting_.empty()) && chunked_ == kNoSlot) {
    return false;
  }
  const std::int64_t slots = free_rows_for(0);
  if (min_free_slots_ && chunked_ == kNoSlot && !running_.empty() && slots < *min_free_slots_) {
    return false;
  }
  if (slots <= 0 && (chunked_ == kNoSlot || rules_.slots_limit_chunks) && !preemption_) {
    running_.full = true;
    return false;
  }
  order_waiting();
  Adder adder = start_adder();
  if (chunked_ != kNoSlot) {
    at(chunked_).known = length(at(chunked_));
    at(chunked_).last_extend = at(chunked_).known - at(chunked_).kv.prefix;
    add_chunked(adder);
  }
  pick_waiting(adder);
  const bool built = !adder.picked.empty();
  if (built) {
    take_picked_from_queue(adder.picked);
  }
  for (const Slot slot : adder.preempted) {
    if (!built && !rules_.preempted_always_requeued) {
      // The engine forgets them: their clients wait for ever.
      drop(slot);
      continue;
    }
    plan_.preempted.push_back(at(slot).id);
    enqueue(slot);
  }
  return built && build_prefill(adder, next);
}

void Scheduler::Impl::pick_waiting(Adder& adder) {
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const Slot slot = waiting_[i];
    if (rules_.verdict_before_match && verdict(adder) == Verdict::kOther) {
      return;
    }
    // Of those picked only a further chunk, which comes first, has a row already.
    const std::int64_t held = !adder.picked.empty() && at(adder.picked.front()).kv.held ? 1 : 0;
    if (static_cast<std::int64_t>(adder.picked.size()) >= free_rows_for(held)) {
      running_.full = true;
    }
    Request& request = at(slot);
    if (running_.full && (!preemption_ || !preempt_for(adder, request))) {
      return;
    }
    request.known = length(request);
    kv_.match(request.kv, request.content, request.known - 1);
    kv_.adopt_state(request.kv);
    request.kv.shared = request.kv.prefix;
    request.matched = std::min(request.kv.prefix + request.kv.host, request.known - 1);
    request.last_extend = request.known - request.kv.prefix;
    const Verdict found = add_one(adder, slot);
    if (found == Verdict::kNoToken) {
      running_.full = !rules_.no_token_needs_work || !adder.picked.empty() || !running_.empty();
    }
    if (found != Verdict::kContinue) {
      if (adder.picked.empty() || adder.picked.back() != slot) {
        kv_.return_state(request.kv);
      }
      return;
    }
  }
}

void Scheduler::Impl::take_picked_from_queue(const std::vector<Slot>& picked) {
  for (const Slot slot : picked) {
    at(slot).waiting = false;
  }
  while (!waiting_.empty() && !at(waiting_.front()).waiting) {
    waiting_.pop_front();
  }
  std::size_t left = picked.size();
  const bool more = std::any_of(waiting_.begin(), waiting_.end(),
                                [&](Slot slot) { return left-- > 0 && !at(slot).waiting; });
  if (more) {
    std::erase_if(waiting_, [&](Slot slot) { return !at(slot).waiting; });
  }
}

bool Scheduler::Impl::build_prefill(Adder& adder, Batch& next) {
  if (adder.new_chunked != kNoSlot) {
    chunked_ = adder.new_chunked;
  }
  if (chunked_ != kNoSlot) {
    ++at(chunked_).middle_chunks;
    next.chunked = row_of(chunked_);
  }
  next.kind = Kind::kPrefill;
  next.extend_tokens = 0;
  next.prefill_only = true;
  extend_windows(adder.picked);
  take_states(adder.picked);
  std::int64_t slots = 0;
  for (const Slot slot : adder.picked) {
    const Request& request = at(slot);
    next.extend_tokens += request.computed - request.kv.prefix;
    slots += align_up(request.computed, kv_.page()) - align_up(request.kv.prefix, kv_.page());
    next.prefill_only = next.prefill_only && request.max_output == 0;
  }
  const auto requests = static_cast<std::int64_t>(adder.picked.size());
  kv_.make_room(next.extend_tokens + (kv_.page() > 1 ? requests * kv_.page() : 0));
  if (!kv_.take(slots)) {
    error_ = EngineError::kPrefillOutOfMemory;
    next.kind = Kind::kIdle;
    return true;
  }
  for (const Slot slot : adder.picked) {
    Request& request = at(slot);
    if (!request.kv.held) {
      request.kv.held = true;
      --free_rows_;
      plan_.admitted.push_back({request.id, request.resumed, Tokens{request.kv.prefix}});
      prefix_hit_tokens_ += request.kv.prefix;
    }
    kv_.track_extend(request.kv, request.computed);
    request.kv.filled = request.computed;
    request.retracted = false;
    request.batch_step = step_;
    ++request.extends;
    next.rows.push_back(row_of(slot));
  }
  next.mixed_from = next.rows.size();
  record_prefill(next);
  if (config_.enable_mixed_chunk && config_.chunked_prefill_size && !running_.empty()) {
    mix_running(next);
  }
  return true;
}

void Scheduler::Impl::take_states(const std::vector<Slot>& picked) {
  std::int64_t missing = 0;
  for (const Slot slot : picked) {
    missing += kv_.missing_states(at(slot).kv);
  }
  kv_.make_state_room(missing);
  for (const Slot slot : picked) {
    kv_.take_states(at(slot).kv);
  }
}

// Without a prefix cache a window slides before each further chunk; under overlap the chunk before
// may still be computed.
void Scheduler::Impl::extend_windows(const std::vector<Slot>& picked) {
  if (!kv_.windowed() || kv_.sharing()) {
    return;
  }
  const std::int64_t late = overlap_ ? config_.chunked_prefill_size.value_or(Tokens{}).count() : 0;
  for (const Slot slot : picked) {
    Request& request = at(slot);
    if (!overlap_ || request.extends >= 2) {
      kv_.slide(request.kv, request.kv.prefix - late);
    }
  }
}

// The decode rows of the running batch ride along.
void Scheduler::Impl::mix_running(Batch& next) {
  if (rules_.skips_certain_finishes && exclude_certain_finishes()) {
    running_.full = false;
  }
  running_.drop_finished();
  if (running_.empty() || (rules_.mixed_needs_room && !kv_.has_room(decode_need()))) {
    return;
  }
  if (!take_decode_slots()) {
    next.kind = Kind::kIdle;
    return;
  }
  next.kind = Kind::kMixed;
  const bool full = running_.full;
  while (!running_.empty()) {
    const Slot slot = running_.front();
    leave_running(slot, true);
    Request& request = at(slot);
    // A mixed step tracks no states of decodes.
    kv_.track_decodes(request.kv, request.computed, request.kv.filled);
    ++request.kv.filled;
    ++request.decodes;
    request.known = length(request);
    request.computed = rules_.publishes_outputs ? request.kv.filled : request.known;
    request.last_extend = 1;
    request.batch_step = step_;
    next.rows.push_back(row_of(slot));
    ++next.extend_tokens;
    ++plan_.decode_requests;
    plan_.decode_context += Tokens{request.kv.filled};
    if (config_.detail) {
      plan_.decoded.push_back(request.id);
    }
  }
  next.prefill_only = false;
  running_.full = full;
  running_.prefill_only = false;
  running_.extend_tokens = 0;
  plan_.requests += plan_.decode_requests;
  plan_.sampled_rows += plan_.decode_requests;
  plan_.sampling_requests += plan_.decode_requests;
  plan_.tokens += Tokens{plan_.decode_requests};
}

void Scheduler::Impl::record_prefill(const Batch& next) {
  for (const Row& row : next.rows) {
    const Request& request = at(row.slot);
    const std::int64_t cached = request.kv.prefix;
    const std::int64_t fresh = request.computed - cached;
    plan_.extended.push_back({request.id, Tokens{cached}, Tokens{fresh}});
    plan_.prefill_tokens += Tokens{fresh};
    plan_.prefill_attention += fresh * cached + fresh * (fresh + 1) / 2;
    plan_.sampling_requests += row.slot == chunked_ ? 0 : 1;
  }
  plan_.prefill_requests = static_cast<std::int64_t>(next.rows.size());
  plan_.requests = plan_.prefill_requests;
  plan_.sampled_rows = plan_.prefill_requests;
  plan_.tokens = plan_.prefill_tokens;
}

// The engine finds nothing to do. Under overlap it notices when it had nothing before either.
void Scheduler::Impl::on_no_batch() {
  if (overlap_ && in_flight_ > 0 && batch(step_ - 1).kind != Kind::kIdle) {
    return;
  }
  const bool all_quiet = running_.empty() && chunked_ == kNoSlot && waiting_.empty() &&
                         asking_.empty() && parked_.empty() && moving_.empty() && copies_.empty();
  if (all_quiet || !rules_.resets_ratio_when_idle) {
    ratio_ = ratio_init_;
  }
  const bool nothing_comes = running_.empty() && moving_.empty() && decode_rounds_left_ == 0;
  idle_rounds_ = nothing_comes ? idle_rounds_ + 1 : 0;
}

// Nothing runs or is on its way that would give slots back, and yet nobody was let in, or a pending
// chunk did not go on. In the first such round a flag from before can have kept the door shut.
Slot Scheduler::Impl::never_admitted() const {
  if (idle_rounds_ < 2) {
    return kNoSlot;
  }
  if (chunked_ != kNoSlot) {
    return chunked_;
  }
  if (config_.role == Role::kDecode) {
    const std::deque<Slot>& outside = parked_.empty() ? asking_ : parked_;
    const bool tried = waiting_.empty() && !outside.empty() && at(outside.front()).handshaken;
    return tried ? outside.front() : kNoSlot;
  }
  return waiting_.empty() ? kNoSlot : waiting_.front();
}

}  // namespace oomcast::sglang
