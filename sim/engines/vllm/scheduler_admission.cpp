// The waiting part of Scheduler.schedule() in vLLM's v1/core/sched/scheduler.py: requests whose KV
// was brought or is on its way first (from 0.18 on), then the others, each from the front.
#include <algorithm>

#include "sim/engines/vllm/scheduler_impl.hpp"

namespace oomcast::vllm {

void Scheduler::Impl::schedule_waiting(Budget& budget) {
  if (still_refused(budget.tokens)) {
    return;
  }
  std::int64_t still_on_the_way = 0;
  std::int64_t passed_over = 0;
  if (admit_from(kv_waiting_, budget, still_on_the_way)) {
    admit_from(waiting_, budget, passed_over);
  }
  if (!budget.defer_prefills) {
    prefill_capacity_bound_ = waiting_.size() > passed_over;
  }
}

bool Scheduler::Impl::admit_from(WaitingQueue& queue, Budget& budget, std::int64_t& passed_over) {
  Slot slot = queue.front();
  while (slot != kNoSlot) {
    if (budget.tokens <= 0 || budget.input <= draft_slots_ || running_.size() >= max_active_) {
      return false;
    }
    const Slot behind = queue.after(slot);
    const Verdict verdict = try_admit(slot, budget);
    if (verdict == Verdict::kStop) {
      return false;
    }
    passed_over += verdict == Verdict::kPassedOver ? 1 : 0;
    slot = behind;
  }
  return true;
}

Scheduler::Impl::Verdict Scheduler::Impl::try_admit(Slot slot, Budget& budget) {
  Request& request = at(slot);
  if (request.status == Request::Status::kRemote && !take_up(request)) {
    return Verdict::kPassedOver;
  }
  if (request.stale > 0 && !request.drops_stale) {
    // Output of before the preemption is still to come; resuming now could compute its position
    // twice.
    return Verdict::kPassedOver;
  }
  const bool arrived = request.computed > 0;  // its KV was brought by a connector
  const PrefixHit& hit = arrived ? no_hit_ : kv_.find_hit(request);
  KvConnector::Match match;
  if (!arrived) {
    request.shared_boundary = hit.shared_boundary;
    if (connector_) {
      match = connector_->match(request, hit.tokens);
    }
  }
  if (match.later) {
    return Verdict::kPassedOver;
  }
  if (match.async) {
    return start_transfer(slot, hit, match.tokens);
  }
  const std::int64_t computed = request.computed + hit.tokens + match.tokens;
  if (budget.defer_prefills && computed < request.known() - 1) {
    return Verdict::kStop;
  }
  const std::int64_t left = std::min(budget.tokens, budget.input - draft_slots_);
  std::int64_t tokens = request.known() - computed;
  std::int64_t drafts = 0;
  const std::int64_t padded = 1 + speculative_;
  if (rules_.pads_spec_decode && speculative_ > 0 && tokens == 1 && !budget.prefill_scheduled &&
      (!current_->entries.empty() || computed > 0) && computed + padded + 1 <= max_model_len_) {
    if (padded > left) {
      return Verdict::kStop;
    }
    tokens = padded;
    drafts = speculative_;
  }
  if (budget.threshold > 0) {
    tokens = std::min(tokens, budget.threshold);
  }
  if (!config_.enable_chunked_prefill && tokens > left) {
    remember_refusal(slot, false, true, budget);  // a shorter hit leaves more to compute
    return Verdict::kStop;
  }
  tokens = align_to_states(request, std::min(tokens, left), computed - request.computed);
  if (tokens == 0) {
    return Verdict::kStop;
  }
  if (drafts > 0 && mamba_block_ > 0 && tokens != padded) {
    tokens = 1;
    drafts = 0;
  }
  KvManager::Ask ask = admission_ask(hit, match.tokens);
  ask.new_tokens = tokens;
  ask.lookahead = rules_.admission_lookahead ? lookahead_ : 0;
  if (const Refusal refusal = kv_.allocate(request, ask); refusal != Refusal::kNone) {
    // A chunk behind a shorter hit ends earlier and may need fewer blocks, but never fewer than are
    // in no hit now.
    const bool whole = refusal == Refusal::kFullSequence;
    const std::int64_t chunk = budget.threshold > 0 ? std::min(left, budget.threshold) : left;
    const bool firm = whole || hit.tokens == 0 || request.known() <= chunk ||
                      (kv_.plain() && kv_.fresh_need(request, ask) > kv_.available());
    remember_refusal(slot, whole, firm, budget);
    return Verdict::kStop;
  }
  admit(slot, computed, tokens, drafts, budget);
  if (connector_) {
    connector_->allocated(request, match.tokens);
  }
  return Verdict::kAdmitted;
}

KvManager::Ask Scheduler::Impl::admission_ask(const PrefixHit& hit, std::int64_t external) const {
  KvManager::Ask ask;
  ask.hit = &hit;
  ask.external = external;
  ask.full_sequence = rules_.full_sequence_check && config_.scheduler_reserve_full_isl;
  ask.headroom = rules_.watermark && running_.size() > 0;
  return ask;
}

void Scheduler::Impl::admit(Slot slot, std::int64_t computed, std::int64_t tokens,
                            std::int64_t drafts, Budget& budget) {
  Request& request = at(slot);
  leave_queue(slot);
  running_.push_back(slot);
  request.order = next_order_++;
  if (first_loose_ == kNoSlot) {
    first_loose_ = slot;
  }
  const bool resumed = request.status == Request::Status::kPreempted;
  request.status = Request::Status::kRunning;
  request.computed = computed;
  budget.tokens -= tokens;
  budget.input -= tokens + draft_slots_;
  budget.prefill_admitted |= computed < request.known() - 1;
  prefix_hit_tokens_ += computed;
  plan_.admitted.push_back({request.id, resumed, Tokens{computed}});
  if (tracks_tables_) {
    table_sizes_.insert(table_sizes_.end(), kv_.num_groups(), 0);
  }
  if (connector_ && computed + tokens < request.known()) {
    prefilling_.insert(slot);
  }
  push_entry(slot, tokens, drafts, computed,
             resumed ? ScheduledRequest::Kind::kResumed : ScheduledRequest::Kind::kNew);
}

void Scheduler::Impl::remember_refusal(Slot slot, bool full_sequence, bool firm,
                                       const Budget& budget) {
  refused_.slot = slot;
  refused_.serial = at(slot).serial;
  refused_.known = at(slot).known();
  refused_.insertions = kv_.insertions();
  refused_.evictions = kv_.evictions();
  refused_.frees = frees_;
  refused_.full_sequence = full_sequence;
  refused_.firm = firm;
  refused_.tokens_left = budget.tokens;
  refused_.queued = running_.size() + waiting();
}

// Whether the head of the queue was refused before and nothing has changed since that could let it
// in: no block was given up or hashed, so free blocks and hits can only have shrunk.
bool Scheduler::Impl::still_refused(std::int64_t tokens_left) const {
  const Slot head = waiting_.front();
  return lane_possible_ && head != kNoSlot && head == refused_.slot &&
         at(head).serial == refused_.serial && at(head).known() == refused_.known &&
         refused_.frees == frees_ && refused_.insertions == kv_.insertions() &&
         running_.size() > 0 && (refused_.firm || refused_.evictions == kv_.evictions()) &&
         (refused_.full_sequence ||
          (refused_.tokens_left == tokens_left && refused_.queued == running_.size() + waiting()));
}

}  // namespace oomcast::vllm
