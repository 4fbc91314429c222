// What a KV connector adds to the scheduler: blocks that wait for their content, that stay for a
// send, that a step in flight may still write.
#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/scheduler_impl.hpp"

namespace oomcast::vllm {

bool Scheduler::Impl::transfers_pending() const {
  return connector_ && (ended_since_schedule_ || connector_->jobs_under_way());
}

// A transfer takes the blocks of all it brings at once, needs no budget and no slot, and must leave
// the prefills under way what they still need: it cannot be preempted.
Scheduler::Impl::Verdict Scheduler::Impl::start_transfer(Slot slot, const PrefixHit& hit,
                                                         std::int64_t external) {
  Request& request = at(slot);
  KvManager::Ask ask = admission_ask(hit, external);
  if (rules_.transfers_leave_reserve) {
    ask.reserve = reserved_blocks() + draft_step_blocks_;
  }
  ask.unpublished = true;
  if (kv_.allocate(request, ask) != Refusal::kNone) {
    return Verdict::kStop;
  }
  request.computed = hit.tokens + external;
  request.status = Request::Status::kRemote;
  prefilling_.insert(slot);
  connector_->allocated(request, external);
  if (rules_.transfers_queue_first && !request.waits_for_kv) {
    waiting_.erase(slot);
    kv_waiting_.add(slot);
    request.waits_for_kv = true;
  }
  return Verdict::kAdmitted;
}

// Blocks that the prefills under way still need for all their tokens and a first draft step.
std::int64_t Scheduler::Impl::reserved_blocks() const {
  const std::int64_t drafts = speculative_ > 0 ? 1 + speculative_ + lookahead_ : 0;
  std::int64_t blocks = 0;
  for (const Slot slot : prefilling_) {
    blocks += kv_.remaining_need(at(slot), at(slot).known() + drafts);
  }
  return blocks;
}

// _update_waiting_for_remote_kv
bool Scheduler::Impl::take_up(Request& request) {
  if (!request.arrived) {
    return false;
  }
  if (request.load_failed && request.computed == 0) {
    free_blocks(request);
  } else {
    kv_.cache(request, request.computed);
    if (request.computed == request.known()) {
      --request.computed;  // the last token is computed here: its logits are needed
    }
  }
  request.arrived = false;
  request.load_failed = false;
  request.status = request.was_preempted ? Request::Status::kPreempted : Request::Status::kWaiting;
  return true;
}

void Scheduler::Impl::end_request(Slot slot, KvConnector::End end) {
  Request& request = at(slot);
  bool hold = request.status == Request::Status::kRemote && !request.arrived;
  if (connector_) {
    prefilling_.erase(slot);
    kv_.trim(request, std::max<std::int64_t>(request.computed - request.in_flight, 0));
    hold |= connector_->ended(request, end, output_.handoffs);
    ended_since_schedule_ = true;
  }
  if (hold) {
    request.status = Request::Status::kEnded;
    held_.push_back(slot);
    return;
  }
  free_blocks(request);
  release_request(slot);
}

void Scheduler::Impl::free_blocks(Request& request) {
  if (defer_block_free_ && request.last_batch > batches_over_) {
    fenced_.push_back({batches_scheduled_, kv_.surrender(request)});
  } else {
    kv_.free(request);
  }
  ++frees_;
}

void Scheduler::Impl::batch_is_over(const Batch& done) {
  if (done.number == 0) {
    return;
  }
  batches_over_ = done.number;
  while (!fenced_.empty() && fenced_.front().batch <= batches_over_) {
    kv_.free_fenced(fenced_.front().blocks);
    fenced_.pop_front();
  }
}

void Scheduler::Impl::plan_transfers() {
  scheduled_.clear();
  for (std::size_t i = 0; i < current_->entries.size(); ++i) {
    const Entry& entry = current_->entries[i];
    scheduled_.push_back(
        {&at(entry.slot), entry.tokens, entry.kind, table_sizes_.data() + i * kv_.num_groups()});
  }
  connector_->plan_step(scheduled_, plan_.transfers);
  ended_since_schedule_ = false;
}

// _handle_invalid_blocks: computed tokens end before the first bad block.
void Scheduler::Impl::find_failed_loads(const TransferReport& report) {
  failing_.clear();
  for (const TransferReport::Received& one : report.received) {
    const auto found = live_.find(one.id);
    OOMCAST_CHECK(found != live_.end(), "request {} is reported, but unknown", one.id);
    Request& request = at(found->second);
    if (request.status != Request::Status::kRemote) {
      continue;  // it was aborted meanwhile
    }
    std::int64_t good = request.computed;
    if (one.failed) {
      good = 0;
    } else if (!one.bad_blocks.empty()) {
      OOMCAST_CHECK(kv_.num_groups() == 1, "bad blocks are reported of {} KV cache groups",
                    kv_.num_groups());
      const std::vector<kv::BlockId>& table = request.groups.front().blocks;
      const auto bad = std::find_first_of(table.begin(), table.end(), one.bad_blocks.begin(),
                                          one.bad_blocks.end());
      good = std::min(good, (bad - table.begin()) * kv_.block_size());
    }
    if (one.failed || good < request.computed) {
      request.computed = good;
      request.load_failed = true;
      failing_.push_back(found->second);
    }
  }
}

void Scheduler::Impl::apply_report(const TransferReport& report) {
  if (!recompute_failed_loads_) {
    std::sort(failing_.begin(), failing_.end(),
              [this](Slot left, Slot right) { return at(left).id < at(right).id; });
    for (const Slot slot : failing_) {
      output_.failed.push_back(at(slot).id);
      leave_queue(slot);
      end_request(slot, KvConnector::End::kFailed);
    }
  }
  for (const TransferReport::Received& one : report.received) {
    received(one.id);
  }
  for (const JobId job : report.jobs) {
    if (const std::optional<RequestId> id = connector_->job_done(job)) {
      received(*id);
    }
  }
  for (const RequestId id : report.sent) {
    if (const auto found = live_.find(id); found != live_.end()) {
      connector_->sent(at(found->second));
    }
    release_held(id);
  }
}

void Scheduler::Impl::received(RequestId id) {
  Request& request = at(live_.at(id));
  if (request.status == Request::Status::kEnded) {
    release_held(id);
  } else {
    request.arrived = true;
  }
}

void Scheduler::Impl::release_held(RequestId id) {
  const auto found = live_.find(id);
  OOMCAST_CHECK(found != live_.end() && at(found->second).status == Request::Status::kEnded,
                "request {} is reported as sent, but holds no blocks", id);
  const Slot slot = found->second;
  held_.erase(slot);
  free_blocks(at(slot));
  release_request(slot);
}

std::int64_t Scheduler::Impl::host_chunks() const {
  TransferCounts counts;
  if (connector_) {
    connector_->count(counts);
  }
  return counts.host_used;
}

TransferCounts Scheduler::Impl::transfers() const {
  TransferCounts counts;
  const auto blocks_of = [](const Request& request) {
    std::int64_t blocks = 0;
    for (const GroupTable& table : request.groups) {
      blocks += static_cast<std::int64_t>(table.blocks.size()) -
                std::count(table.blocks.begin(), table.blocks.end(), kv::kNullBlock);
    }
    return Blocks{blocks};
  };
  for (const WaitingQueue* queue : {&waiting_, &kv_waiting_}) {
    for (Slot slot = queue->front(); slot != kNoSlot; slot = queue->after(slot)) {
      const bool remote = at(slot).status == Request::Status::kRemote;
      counts.remote += remote ? 1 : 0;
      counts.arrived += remote && at(slot).arrived ? 1 : 0;
      counts.remote_blocks += remote ? blocks_of(at(slot)) : Blocks{};
    }
  }
  counts.held = held_.size();
  for (Slot slot = held_.front(); slot != kNoSlot; slot = at(slot).next) {
    counts.held_blocks += blocks_of(at(slot));
  }
  for (const Fenced& fenced : fenced_) {
    counts.deferred_blocks += Blocks{static_cast<std::int64_t>(fenced.blocks.size())};
  }
  counts.reserved_blocks = Blocks{reserved_blocks()};
  if (connector_) {
    connector_->count(counts);
  }
  return counts;
}

}  // namespace oomcast::vllm
