// Scheduler.schedule() of vLLM's v1/core/sched/scheduler.py: running requests first, then waiting
// ones (scheduler_admission.cpp), under one token budget.
#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/scheduler_impl.hpp"

namespace oomcast::vllm {

const StepPlan& Scheduler::Impl::schedule() {
  OOMCAST_CHECK(in_flight_ < depth_, "{} batches in flight, the pipeline holds {}", in_flight_,
                depth_);
  const bool lane_fits =
      lane_.size() > 0 && in_flight_ == depth_ - 1 && !(by_priority_ && first_loose_ != kNoSlot) &&
      static_cast<std::int64_t>(lane_.at_boundary(step_).size() * kv_.num_groups()) <=
          kv_.available();
  if (!lane_fits) {
    leave_lane();
  }
  plan_.step = step_;
  plan_.tokens = Tokens{};
  plan_.requests = plan_.sampled_rows = plan_.sampling_requests = 0;
  plan_.decode_requests = plan_.prefill_requests = plan_.prefill_attention = 0;
  plan_.decode_tokens = plan_.decode_context = plan_.prefill_tokens = Tokens{};
  plan_.admitted.clear();
  plan_.preempted.clear();
  plan_.detail.clear();
  plan_.detail_blocks.clear();
  plan_.detail_group_blocks.clear();
  if (connector_) {
    plan_.transfers.clear();
  }
  table_sizes_.clear();
  current_ = &batch(in_flight_);
  current_->step = step_;
  current_->lane_tokens = 0;
  current_->lane_ends.clear();
  current_->entries.clear();

  kv_.step_starts();
  Budget budget = start_budget();
  if (lane_.size() > 0) {
    budget.tokens -= lane_.size();
    budget.input -= lane_.size();
    schedule_lane();
  }
  schedule_running(budget);
  if (plan_.preempted.empty()) {
    schedule_waiting(budget);
  }
  finish_schedule(budget);
  return plan_;
}

Scheduler::Impl::Budget Scheduler::Impl::start_budget() {
  Budget budget;
  budget.tokens = max_scheduled_;
  budget.input = max_batched_;
  const std::int64_t requests = running_.size() + waiting();
  budget.threshold = config_.long_prefill_token_threshold.count();
  if (rules_.threshold_spares_lone_request) {
    budget.threshold = requests > 1 ? budget.threshold : 0;
    if (budget.threshold > 0 && config_.long_prefill_token_threshold_adaptive) {
      budget.threshold = std::max(budget.threshold, max_batched_ / requests);
    }
  }
  budget.defer_prefills = prefill_interval_ > 1 && !prefill_capacity_bound_ &&
                          executed_steps_ + 1 - last_prefill_step_ < prefill_interval_ &&
                          some_decode_runs();
  return budget;
}

bool Scheduler::Impl::some_decode_runs() const {
  for (Slot slot = running_.front(); slot != kNoSlot; slot = at(slot).next) {
    if (!at(slot).prefill_chunk) {
      return true;
    }
  }
  return false;
}

std::int64_t Scheduler::Impl::running_tokens(const Request& request, const Budget& budget) const {
  if (request.placeholders > 0 &&
      request.computed + 2 - request.placeholders >= request.prompt_len + request.max_output) {
    return 0;  // the token in flight is its last
  }
  if (step_ < request.eligible_step || (budget.defer_prefills && request.prefill_chunk)) {
    return 0;
  }
  std::int64_t tokens = request.known() + request.drafts + request.placeholders - request.computed;
  if (budget.threshold > 0) {
    tokens = std::min(tokens, budget.threshold);
  }
  tokens = std::min(
      {tokens, budget.tokens, budget.input - draft_slots_, max_model_len_ - request.computed - 1});
  return align_to_states(request, tokens, 0);
}

void Scheduler::Impl::schedule_running(Budget& budget) {
  for (Slot slot = first_loose_; slot != kNoSlot && budget.tokens > 0;) {
    if (budget.input <= draft_slots_) {
      break;
    }
    Request& request = at(slot);
    const std::int64_t tokens = running_tokens(request, budget);
    if (tokens <= 0) {
      slot = request.next;
      continue;
    }
    if (tracks_tables_) {
      for (const GroupTable& table : request.groups) {
        table_sizes_.push_back(kv_.size_of(table));
      }
    }
    Slot behind = kNoSlot;
    if (const Room room = make_room(slot, tokens, budget, behind); room != Room::kMade) {
      if (tracks_tables_) {
        table_sizes_.resize(table_sizes_.size() - request.groups.size());
      }
      if (room == Room::kGone && by_priority_ && rules_.self_victim_continues) {
        slot = behind;
        continue;
      }
      break;
    }
    budget.prefill_scheduled |= request.prefill_chunk;
    budget.tokens -= tokens;
    budget.input -= tokens + draft_slots_;
    std::int64_t drafts = 0;
    if (request.drafts > 0) {
      drafts = std::clamp<std::int64_t>(
          tokens + request.computed - request.known() - request.placeholders, 0, request.drafts);
      request.drafts = 0;
    }
    push_entry(slot, tokens, drafts, 0, ScheduledRequest::Kind::kContinued);
    slot = behind;
  }
}

Scheduler::Impl::Room Scheduler::Impl::make_room(Slot slot, std::int64_t tokens, Budget& budget,
                                                 Slot& behind) {
  Request& request = at(slot);
  std::int64_t passed_over = 0;
  while (true) {
    KvManager::Ask ask;
    ask.new_tokens = tokens;
    ask.lookahead = lookahead_;
    if (kv_.allocate(request, ask) == Refusal::kNone) {
      behind = request.next;
      for (; passed_over > 0 && behind != kNoSlot; --passed_over) {
        behind = at(behind).next;
      }
      return Room::kMade;
    }
    const Slot victim = by_priority_ ? choose_victim() : running_.back();
    if (defer_block_free_ && at(victim).last_batch > batches_over_) {
      return Room::kNone;
    }
    if (by_priority_) {
      const std::size_t before = current_->entries.size();
      take_back(victim, budget);
      const bool was_scheduled = current_->entries.size() < before;
      if (!rules_.victim_index_by_position && !was_scheduled && victim != slot &&
          at(victim).order < request.order) {
        ++passed_over;  // the old scan's index then points one request too far
      }
    }
    behind = request.next;
    preempt(victim);
    if (victim == slot) {
      return Room::kGone;
    }
  }
}

// The first of the least urgent, latest arrived.
Slot Scheduler::Impl::choose_victim() const {
  Slot victim = running_.front();
  for (Slot slot = at(victim).next; slot != kNoSlot; slot = at(slot).next) {
    const Request& worst = at(victim);
    const Request& other = at(slot);
    if (other.priority > worst.priority ||
        (other.priority == worst.priority && other.arrival_time > worst.arrival_time)) {
      victim = slot;
    }
  }
  return victim;
}

// A victim that was scheduled earlier in this step gives its tokens back.
void Scheduler::Impl::take_back(Slot victim, Budget& budget) {
  std::vector<Entry>& entries = current_->entries;
  const auto place = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return entry.slot == victim; });
  if (place == entries.end()) {
    return;
  }
  budget.tokens += place->tokens;
  budget.input += place->tokens + draft_slots_;
  if (tracks_tables_) {
    const auto groups = static_cast<std::ptrdiff_t>(kv_.num_groups());
    const auto row = table_sizes_.begin() + (place - entries.begin()) * groups;
    table_sizes_.erase(row, row + groups);
  }
  entries.erase(place);
}

void Scheduler::Impl::preempt(Slot slot) {
  Request& request = at(slot);
  stop_running(slot);
  kv_.publish(request);
  free_blocks(request);
  if (connector_) {
    connector_->preempted(request);
    prefilling_.erase(slot);
    request.was_preempted = true;
    request.drops_stale = requires_delivery_ || (request.drops_stale && request.stale > 0);
  }
  request.status = Request::Status::kPreempted;
  request.computed = 0;
  request.drafts = 0;
  if (rules_.stale_output_delays_resume) {
    request.stale = request.in_flight;
  }
  if (rules_.preemption_resets_placeholders) {
    request.placeholders = 0;
  }
  waiting_.put_first(slot);
  ++preemptions_;
  plan_.preempted.push_back(request.id);
}

void Scheduler::Impl::push_entry(Slot slot, std::int64_t tokens, std::int64_t drafts,
                                 std::int64_t hit, ScheduledRequest::Kind kind) {
  current_->entries.push_back({slot, at(slot).serial, tokens, drafts, hit, kind, false, false});
}

// Chunks of models with mamba groups end where states are cached.
std::int64_t Scheduler::Impl::align_to_states(const Request& request, std::int64_t tokens,
                                              std::int64_t hit) const {
  const std::int64_t end = std::max(request.prompt_len, request.known() - 1);
  if (mamba_block_ == 0 || tokens <= 0 || request.computed + hit >= end) {
    return tokens;
  }
  return rules_.mamba_fine_hits ? align_to_states_fine(request, tokens, hit, end)
                                : align_to_blocks(request, tokens, hit);
}

std::int64_t Scheduler::Impl::align_to_blocks(const Request& request, std::int64_t tokens,
                                              std::int64_t hit) const {
  const std::int64_t block = mamba_block_;
  const std::int64_t start = request.computed + hit;
  std::int64_t last = request.known() / block * block;
  if (config_.spec.method == SpecDecode::Method::kEagle) {
    last = std::max<std::int64_t>(last - block, 0);
  }
  if (start + tokens < last) {
    return tokens / block * block;
  }
  return start < last && last < start + tokens ? last - start : tokens;
}

std::int64_t Scheduler::Impl::align_to_states_fine(const Request& request, std::int64_t tokens,
                                                   std::int64_t hit,
                                                   std::int64_t prefill_end) const {
  const std::int64_t block = mamba_block_;
  const std::int64_t start = request.computed + hit;
  std::int64_t end = start + tokens;
  if (end < prefill_end) {
    const std::int64_t threshold = config_.long_prefill_token_threshold.count();
    const std::int64_t longest =
        threshold > 0 ? std::min(max_scheduled_, threshold) : max_scheduled_;
    const std::int64_t aligned = end / block * block;
    if (aligned > start || block <= longest) {
      end = aligned;
    }
  }
  const std::int64_t last = kv_.state_boundary(request.known(), block);
  const std::int64_t tail =
      kv_.partial_hits() ? kv_.state_boundary(request.prompt_len, kv_.hash_block_size()) : 0;
  const std::int64_t junction = request.shared_boundary;
  const std::int64_t stops[] = {
      start % block != 0 ? (start / block + 1) * block : 0,
      last,
      last < tail && tail < request.prompt_len ? tail : 0,
      start < junction && junction < end ? start + (junction - start) / block * block : 0,
  };
  const std::int64_t limit = end;
  for (const std::int64_t stop : stops) {
    if (start < stop && stop < limit) {
      end = std::min(end, stop);
    }
  }
  return std::max<std::int64_t>(end - start, 0);
}

void Scheduler::Impl::finish_schedule(const Budget& budget) {
  for (Entry& entry : current_->entries) {
    count_entry(entry);
  }
  if (config_.detail) {
    for (std::size_t i = 0; i < current_->entries.size(); ++i) {
      fill_detail(current_->entries[i], i);
    }
  }
  if (plan_.requests > 0) {
    ++executed_steps_;
  }
  current_->number = plan_.requests > 0 ? ++batches_scheduled_ : 0;
  if (budget.prefill_scheduled || budget.prefill_admitted) {
    last_prefill_step_ = executed_steps_;
  }
  kv_.step_ends();
  if (connector_) {
    plan_transfers();
  }
  for (Entry& entry : current_->entries) {
    advance_entry(entry);
    plan_.sampling_requests += entry.yields ? 1 : 0;
  }
  plan_.blocks = blocks();
  plan_.running = running_.size();
  plan_.waiting = waiting();
  ++in_flight_;
  ++step_;
}

void Scheduler::Impl::count_entry(const Entry& entry) {
  const std::int64_t cached = at(entry.slot).computed;
  const Tokens tokens{entry.tokens};
  plan_.tokens += tokens;
  ++plan_.requests;
  plan_.sampled_rows += 1 + entry.drafts;
  if (entry.tokens == 1 + entry.drafts) {
    ++plan_.decode_requests;
    plan_.decode_tokens += tokens;
    plan_.decode_context += Tokens{cached + entry.tokens};
  } else {
    ++plan_.prefill_requests;
    plan_.prefill_tokens += tokens;
    plan_.prefill_attention += entry.tokens * cached + entry.tokens * (entry.tokens + 1) / 2;
  }
}

// _update_after_schedule: computed tokens advance before the step runs.
void Scheduler::Impl::advance_entry(Entry& entry) {
  Request& request = at(entry.slot);
  request.computed += entry.tokens;
  request.in_flight += entry.tokens;
  request.prefill_chunk = request.computed < request.known() + request.placeholders;
  if (connector_) {
    request.last_batch = current_->number;
    if (!request.prefill_chunk) {
      prefilling_.erase(entry.slot);
    }
  }
  entry.yields = !request.prefill_chunk;
  entry.first = entry.yields && request.output == 0 && request.placeholders == 0;
  if (config_.async_scheduling && entry.yields) {
    request.placeholders += 1 + entry.drafts;
    request.drafts = speculative_;
    if (spaced_decodes_) {
      request.eligible_step = step_ + config_.pipeline_parallel_size;
    }
  }
}

void Scheduler::Impl::fill_detail(const Entry& entry, std::size_t position) {
  const Request& request = at(entry.slot);
  ScheduledRequest scheduled;
  scheduled.id = request.id;
  scheduled.kind = entry.kind;
  scheduled.tokens = entry.tokens;
  scheduled.computed = request.computed;
  scheduled.drafts = entry.drafts;
  scheduled.hit = entry.hit;
  scheduled.first_block = plan_.detail_blocks.size();
  scheduled.first_group = plan_.detail_group_blocks.size();
  for (std::size_t g = 0; g < request.groups.size(); ++g) {
    const std::vector<kv::BlockId> table = kv_.blocks_of(request.groups[g]);
    const std::int64_t before = table_sizes_[position * request.groups.size() + g];
    plan_.detail_blocks.insert(plan_.detail_blocks.end(), table.begin() + before, table.end());
    plan_.detail_group_blocks.push_back(
        static_cast<std::int32_t>(static_cast<std::int64_t>(table.size()) - before));
  }
  plan_.detail.push_back(scheduled);
}

}  // namespace oomcast::vllm
