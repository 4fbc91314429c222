// Results of a batch (managers/scheduler_components/batch_result_processor.py;
// scheduler_output_processor_mixin.py in 0.5.8).
#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/sglang/scheduler_impl.hpp"

namespace oomcast::sglang {

const StepOutput& Scheduler::Impl::complete() {
  OOMCAST_CHECK(in_flight_ > 0, "no batch is in flight");
  Batch& done = batch(step_ - in_flight_);
  output_.step = done.step;
  output_.sampled = Tokens{};
  output_.first_token.clear();
  output_.finished.clear();
  output_.sending.clear();
  if (config_.role == Role::kPrefill) {
    apply_prompts(done);
    finish_transfers();
  } else if (done.prefills()) {
    apply_prefill(done);
  } else if (done.kind == Kind::kDecode) {
    apply_decode(done);
  }
  output_.write = begin_copy(kv_.take_writes());
  --in_flight_;
  return output_;
}

void Scheduler::Impl::apply_prefill(const Batch& done) {
  for (std::size_t i = 0; i < done.rows.size(); ++i) {
    const Row& row = done.rows[i];
    if (!present(row) || at(row.slot).finished || at(row.slot).retracted) {
      continue;
    }
    Request& request = at(row.slot);
    if (request.middle_chunks > 0) {
      --request.middle_chunks;
      continue;
    }
    append_token(row.slot);
    if (const std::optional<FinishReason> reason = finish_reason(request)) {
      finish(row.slot, *reason, output_.finished);
    } else if (i < done.mixed_from) {
      kv_.publish(request.kv, published(request, std::min(request.computed, request.known)));
      request.kv.prefix = request.computed;
    }
  }
}

void Scheduler::Impl::apply_decode(Batch& done) {
  running_.result();
  output_.sampled = Tokens{done.live_rows - static_cast<std::int64_t>(done.leavers.size())};
  std::vector<Row> rows = running_.take_due(done.launch);
  rows.insert(rows.end(), done.leavers.begin(), done.leavers.end());
  std::sort(rows.begin(), rows.end(),
            [](const Row& left, const Row& right) { return left.order < right.order; });
  for (const Row& row : rows) {
    if (!present(row) || at(row.slot).finished || at(row.slot).retracted) {
      continue;
    }
    Request& request = at(row.slot);
    const bool counts_itself = request.counting;
    if (!counts_itself) {
      append_token(row.slot);
    }
    if (const std::optional<FinishReason> reason = finish_reason(request)) {
      finish(row.slot, *reason, output_.finished);
    } else if (counts_itself) {
      running_.calendar_again(row.slot);
    }
  }
}

void Scheduler::Impl::append_token(Slot slot) {
  Request& request = at(slot);
  ++request.output;
  output_.sampled += Tokens{1};
  if (output(request) == 1) {
    output_.first_token.push_back(request.id);
  }
}

std::optional<FinishReason> Scheduler::Impl::finish_reason(const Request& request) const {
  const std::int64_t tokens = output(request);
  const bool stops = !request.ignore_eos && tokens == request.stop_after;
  const bool full = tokens >= request.max_output;
  if (request.aborting) {
    return FinishReason::kAbort;
  }
  if (stops && (rules_.stop_before_length || !full) && tokens <= request.max_output) {
    return FinishReason::kStop;
  }
  if (full) {
    return FinishReason::kLength;
  }
  return std::nullopt;
}

void Scheduler::Impl::finish(Slot slot, FinishReason reason,
                             std::vector<FinishedRequest>& finished) {
  Request& request = at(slot);
  // A decode that is already launched for it is wasted.
  if (in_flight_ > 1 && batch(step_ - 1).kind == Kind::kDecode && running_.launched(request)) {
    --batch(step_ - 1).live_rows;
  }
  running_.settle(slot);
  request.finished = true;
  request.known = length(request);
  const std::int64_t owned = reason == FinishReason::kAbort
                                 ? request.kv.filled
                                 : std::min(request.kv.filled, request.known);
  const std::int64_t keyed =
      rules_.publishes_outputs ? std::min(owned, request.known) : request.computed;
  // Of decodes the results known by now; a state is tracked as its result is seen.
  kv_.track_decodes(request.kv, request.computed, request.known - 1);
  kv_.release(request.kv, published(request, keyed), true, owned);
  ++free_rows_;
  finished.push_back({request.id, reason, Tokens{request.output}});
  forget(slot);
  if (request.running) {
    running_.mark_finished(slot);
  } else {
    slots_.give_back(slot);
  }
}

}  // namespace oomcast::sglang
