// Scheduler.update_from_output() of vLLM's v1/core/sched/scheduler.py.
#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/scheduler_impl.hpp"

namespace oomcast::vllm {

const StepOutput& Scheduler::Impl::complete(const TransferReport& report) {
  OOMCAST_CHECK(in_flight_ > 0, "no batch in flight");
  if (in_flight_ != depth_) {
    leave_lane();  // the lane's counters assume a full pipeline
  }
  Batch& done = batch(0);
  clear_output();
  output_.step = done.step;
  output_.sampled = Tokens{done.lane_tokens};
  first_batch_ = (first_batch_ + 1) % depth_;
  --in_flight_;
  if (connector_) {
    batch_is_over(done);
    find_failed_loads(report);
  }
  take_results(done);
  if (connector_) {
    apply_report(report);
  }
  propose_drafts(done);
  if (lane_possible_ && in_flight_ == depth_ - 1) {
    enter_lane();
  }
  return output_;
}

void Scheduler::Impl::clear_output() {
  output_.first_token.clear();
  output_.finished.clear();
  output_.detail_sampled.clear();
  output_.handoffs.clear();
  output_.failed.clear();
}

void Scheduler::Impl::take_results(const Batch& done) {
  finish_lane_members(done);
  for (const Entry& entry : done.entries) {
    apply_entry(entry, done.step);
  }
}

// A member's counters already include output of batches from before it joined.
bool Scheduler::Impl::covered_by_lane(const Entry& entry, std::int64_t step) const {
  const Request& request = at(entry.slot);
  return request.lane != Request::Lane::kNone && request.lane_join > step;
}

void Scheduler::Impl::apply_entry(const Entry& entry, std::int64_t step) {
  Request& request = at(entry.slot);
  if (request.serial != entry.serial) {
    return;  // it was aborted meanwhile
  }
  if (covered_by_lane(entry, step)) {
    output_.sampled += Tokens{1};
    if (entry.first) {
      output_.first_token.push_back(request.id);
    }
    return;
  }
  request.in_flight -= entry.tokens;
  const bool stale = request.stale > 0;
  if (stale) {
    request.stale -= entry.tokens;
  }
  if (!entry.yields || request.status == Request::Status::kEnded ||
      (stale && request.drops_stale)) {
    return;
  }
  const std::vector<std::int32_t>& own = request.accept;
  const std::vector<std::int32_t>& table = own.empty() ? config_.spec.accept : own;
  const std::int64_t acceptable =
      table.empty() ? 0 : table[static_cast<std::size_t>(request.output) % table.size()];
  const std::int64_t generated = 1 + std::min<std::int64_t>(entry.drafts, acceptable);
  if (!stale) {
    const std::int64_t rejected = 1 + entry.drafts - generated;
    request.computed -= request.computed > 0 ? rejected : 0;
    request.placeholders -= request.placeholders > 0 ? rejected : 0;
  }
  apply_tokens(entry.slot, generated, stale);
}

void Scheduler::Impl::apply_tokens(Slot slot, std::int64_t generated, bool stale) {
  Request& request = at(slot);
  const bool running = request.status == Request::Status::kRunning;
  const bool placeholders = request.placeholders > 0;
  const std::int64_t left = output_limit(request) - request.output;
  const bool stopped = generated >= left;
  const std::int64_t kept = std::min(generated, left);
  if (request.output == 0) {
    output_.first_token.push_back(request.id);
  }
  request.output += kept;
  output_.sampled += Tokens{kept};
  if (config_.detail) {
    output_.detail_sampled.emplace_back(request.id, static_cast<std::int32_t>(kept));
  }
  if (rules_.trim_rolls_back_computed && !stale) {
    request.computed -= generated - kept;
  }
  if (rules_.output_caches_to_processed) {
    if (!stale && placeholders) {
      request.placeholders -= generated;
    }
    if (!stale && running && (placeholders || speculative_ > 0)) {
      kv_.cache(request, request.computed - request.in_flight);
    }
  } else if (config_.async_scheduling) {
    request.placeholders -= stale ? 0 : kept;
    if (running) {
      kv_.cache(request, request.computed - request.placeholders);
    }
  }
  if (stopped) {
    finish(slot);
  }
}

void Scheduler::Impl::finish(Slot slot) {
  Request& request = at(slot);
  output_.finished.push_back(request.id);
  if (request.status == Request::Status::kRunning) {
    stop_running(slot);
  } else {
    leave_queue(slot);
  }
  end_request(slot, KvConnector::End::kFinished);
}

// update_draft_token_ids: what the drafter proposes after a step. With async scheduling the
// scheduler assumes all drafts itself.
void Scheduler::Impl::propose_drafts(const Batch& done) {
  if (speculative_ == 0 || config_.async_scheduling) {
    return;
  }
  for (const Entry& entry : done.entries) {
    Request& request = at(entry.slot);
    if (request.serial != entry.serial || request.status == Request::Status::kEnded) {
      continue;
    }
    if (request.prefill_chunk) {
      request.drafts = 0;
      continue;
    }
    const std::vector<std::int32_t>& own = request.draft_counts;
    const std::vector<std::int32_t>& table = own.empty() ? config_.spec.drafts : own;
    request.drafts =
        table.empty()
            ? speculative_
            : std::min<std::int64_t>(
                  speculative_, table[static_cast<std::size_t>(request.output) % table.size()]);
  }
}

}  // namespace oomcast::vllm
