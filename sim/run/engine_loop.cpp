#include "sim/run/engine_loop.hpp"

#include <algorithm>
#include <utility>

#include "sim/run/request_desk.hpp"

namespace oomcast {
namespace {

// Steps for which the time function stays the same.
std::int64_t within_limit(std::int64_t steps, const SteadyShape& steady, const StepTime& time) {
  const std::int64_t room = time.valid_to_context - steady.first_context.count();
  return std::min(steps, room / steady.decode_requests + 1);
}

}  // namespace

EngineLoop::EngineLoop(ServingEngine& engine, const StepTimeModel& model,
                       std::vector<RankBooks> books, RoundListener& listener, Digest& digest)
    : engine_(engine),
      deployment_(engine.deployment()),
      model_(model),
      books_(std::move(books)),
      listener_(listener),
      digest_(digest) {}

FineSpan EngineLoop::next_at() const {
  return pipeline_full() ? std::max(now_, ends_.front()) : now_;
}

bool EngineLoop::schedule_round() {
  const Round round = engine_.schedule();
  const bool runs = round.totals.tokens > Tokens{0};
  HostCopies* const copies = engine_.host_copies();
  FineSpan start = std::max(now_, free_from_);
  if (copies != nullptr) {
    start = copies->begin(start);
  }
  for (const Admission& admission : round.admitted) {
    listener_.admitted(admission, instant(start));
  }
  for (const RequestId id : round.preempted) {
    listener_.preempted(id);
  }
  // One token can be all that is asked for.
  for (const RequestId id : round.handed_token) {
    listener_.first_token(id, instant(now_));
  }
  for (const EndedRequest& request : round.dropped) {
    listener_.ended(request, instant(now_));
  }
  if (round.failure != nullptr) {
    fail(*round.failure);
    return false;
  }
  if (runs) {
    ++totals_.steps;
    digest_.add_word(static_cast<std::uint64_t>(round.totals.tokens.count()));
    launch(round, start);
    return true;
  }
  if (engine_.handoff() != nullptr || copies != nullptr) {
    // KV comes and goes without steps.
    for (RankBooks& books : books_) {
      books.rest();
    }
    sample(instant(start), round.kv, round.totals.running, round.totals.waiting);
    if (sets_peak(round.kv)) {
      totals_.kv_peak_at = instant(start);
    }
  }
  if (engine_.stalled()) {
    return false;
  }
  ends_.push_back(start);
  if (copies != nullptr) {
    copies->launched(start);
  }
  return true;
}

void EngineLoop::take_results() {
  wake(ends_.front());
  ends_.pop_front();
  const RoundResults results = engine_.complete();
  if (HostCopies* copies = engine_.host_copies()) {
    copies->launched(ends_.empty() ? now_ : ends_.back());
  }
  tell(results);
}

void EngineLoop::stretch(FineSpan end) {
  if (end > ends_.back()) {
    free_from_ = free_from_ + (end - ends_.back());
    ends_.back() = end;
  }
}

void EngineLoop::tell(const RoundResults& results) {
  for (const RequestId id : results.first_token) {
    listener_.first_token(id, instant(now_));
  }
  for (const EndedRequest& request : results.ended) {
    listener_.ended(request, instant(now_));
  }
}

void EngineLoop::sleep() {
  engine_.fall_idle();
  ends_.assign(static_cast<std::size_t>(engine_.batches_in_flight()), now_);
}

void EngineLoop::wake(FineSpan at) {
  now_ = std::max(now_, at);
  if (HostCopies* copies = engine_.host_copies()) {
    copies->advance(now_);
  }
}

std::optional<FineSpan> EngineLoop::next_copy_end() const {
  const HostCopies* copies = engine_.host_copies();
  return copies == nullptr ? std::nullopt : copies->next_end();
}

std::vector<RankRecord> EngineLoop::finish() {
  std::vector<RankRecord> ranks;
  for (RankBooks& books : books_) {
    ranks.push_back(books.finish());
    for (const PhaseRecord& phase : ranks.back().startup) {
      for (const Bytes bytes : phase.device) {
        digest_.add_word(static_cast<std::uint64_t>(bytes.count()));
      }
    }
    for (const TimelineRow& row : ranks.back().timeline) {
      add_to_digest(digest_, row);
    }
  }
  return ranks;
}

void EngineLoop::fail(const Outcome& outcome) {
  failure_ = outcome;
  failure_->phase = "runtime";
  failure_->rank = 0;
}

void EngineLoop::launch(const Round& round, FineSpan start) {
  const StepTotals& plan = round.totals;
  StepShape shape;
  shape.tokens = plan.tokens;
  shape.requests = plan.requests;
  shape.sampled_rows = plan.sampling_requests;
  shape.decode_requests = plan.decode_requests;
  shape.decode_context = plan.decode_context;
  shape.prefill_requests = plan.prefill_requests;
  shape.prefill_tokens = plan.prefill_tokens;
  shape.prefill_attention = plan.prefill_attention;
  FineSpan took =
      plan.prefill_requests == 0 && plan.sampled_rows == plan.requests
          ? decode_time(plan.decode_requests, plan.decode_context).at(plan.decode_context)
          : model_.time_of(shape).at(plan.decode_context);
  HostCopies* const copies = engine_.host_copies();
  if (copies != nullptr) {
    took = took + copies->stalls(start, took);
  }
  // Stages work on different batches: the first is free again when its share is done, and a batch
  // leaves the last stage no earlier than its own share after the batch before it.
  const FineSpan share = FineSpan::from_ticks(took.ticks() / deployment_.pp);
  const FineSpan behind = ends_.empty() ? FineSpan{} : ends_.back() + share;
  ends_.push_back(std::max(start + took, behind));
  free_from_ = start + share;
  if (copies != nullptr) {
    copies->launched(ends_.back());
  }
  const StepRun run{{plan.tokens, plan.sampled_rows, plan.prefill_requests == 0}, 1, start, {}, {}};
  post(run, round.kv, plan.running, plan.waiting);
}

void EngineLoop::post(const StepRun& run, const KvUse& kv, std::int64_t running,
                      std::int64_t waiting) {
  for (RankBooks& books : books_) {
    if (auto outcome = books.run(run)) {
      failure_ = std::move(*outcome);
      break;
    }
  }
  if (!failure_ || books_.front().shows_failure()) {
    const SimTime at = run.start_of(0);
    sample(at, kv, running, waiting);
    if (sets_peak(kv)) {
      totals_.kv_peak_at = at;
    }
  }
}

void EngineLoop::sample(SimTime at, const KvUse& kv, std::int64_t running, std::int64_t waiting) {
  ServingCounts counts{kv, running, waiting, engine_.preemptions()};
  if (const KvHandoff* handoff = engine_.handoff()) {
    counts.transfer = handoff->held();
  }
  if (const HostCopies* copies = engine_.host_copies()) {
    counts.host_used = copies->held_by_card();
  }
  for (RankBooks& books : books_) {
    books.sample(at, counts);
  }
}

bool EngineLoop::reaches_low(const KvUse& kv) const {
  return std::any_of(books_.begin(), books_.end(),
                     [&kv](const RankBooks& books) { return books.is_lowest(kv); });
}

// Whether requests hold more than ever before.
bool EngineLoop::sets_peak(const KvUse& kv) {
  const Bytes used = books_.front().used_bytes(kv);
  const bool more = used > totals_.kv_peak;
  totals_.kv_peak = more ? used : totals_.kv_peak;
  return more;
}

bool EngineLoop::jump(std::optional<FineSpan> until) {
  const std::int64_t depth = engine_.depth();
  if (depth > 2 || engine_.batches_in_flight() != depth - 1) {
    return false;
  }
  const std::int64_t certain = engine_.steady_steps();
  if (certain < 2) {
    return false;
  }
  if (const auto copy = next_copy_end(); copy && (!until || *copy < *until)) {
    until = copy;
  }
  const SteadyShape steady = engine_.steady_shape();
  if (steady.ends_requests && listener_.answers_ends()) {
    return false;
  }
  if (!std::all_of(books_.begin(), books_.end(), [&](const RankBooks& books) {
        return books.repeats(Tokens{steady.decode_requests}, steady.decode_requests);
      })) {
    return false;
  }
  const StepTime& time = decode_time(steady.decode_requests, steady.first_context);
  const Tokens growth{steady.decode_requests};
  const FineSpan start = std::max(now_, free_from_);
  std::int64_t steps = within_limit(certain, steady, time);
  const SimTime first = instant(start);
  // The last step must start before the bucket ends, as seen on the floored clock.
  steps = steps_starting_within(time, steady.first_context, growth, steps,
                                since_start(books_.front().bucket_end(first)) - start);
  steps = before(until, time, steady.first_context, growth, steps, start);
  if (steps < 2) {
    return false;
  }
  const std::int64_t running = engine_.running();
  const SteadyUse jumped = engine_.advance_steady(steps);
  const FineSpan last_start = start + sum_of_steps(time, steady.first_context, growth, steps - 1);
  const FineSpan end = start + sum_of_steps(time, steady.first_context, growth, steps);
  const StepRun run{
      {growth, steady.decode_requests, true}, steps, start, time, steady.first_context};
  post(run, jumped.first, running, engine_.waiting());
  const auto count = [&](std::int64_t more) {
    totals_.steps += more;
    for (; more > 0; --more) {
      digest_.add_word(static_cast<std::uint64_t>(steady.decode_requests));
    }
  };
  count(1);
  if (!jumped.results.empty()) {
    wake(ends_.front());
    tell(jumped.results);
    // But for the least that is held, the last row has all extremes of those behind the first.
    if (!failure_ && steps > 2 && reaches_low(jumped.second)) {
      sample(run.start_of(1), jumped.second, engine_.running(), engine_.waiting());
    }
  }
  if (!failure_) {
    sample(instant(last_start), jumped.last, engine_.running(), engine_.waiting());
    if (sets_peak(jumped.last)) {
      totals_.kv_peak_at = run.start_of(jumped.last_growth);
    }
    count(steps - 1);
  }
  // With one batch in flight the last of the jump still is, and the clock stands at its start.
  free_from_ = end;
  wake(depth == 1 ? end : last_start);
  if (depth == 2) {
    ends_.front() = end;
  }
  return true;
}

const StepTime& EngineLoop::decode_time(std::int64_t requests, Tokens context) {
  const auto slot = static_cast<std::size_t>(requests);
  if (slot >= decode_times_.size()) {
    decode_times_.resize(slot + 1);
  }
  std::optional<StepTime>& known = decode_times_[slot];
  if (!known || context.count() < known->valid_from_context ||
      context.count() > known->valid_to_context) {
    StepShape shape;
    shape.tokens = Tokens{requests};
    shape.requests = shape.sampled_rows = shape.decode_requests = requests;
    shape.decode_context = context;
    known = model_.time_of(shape);
  }
  return *known;
}

// What comes from outside is there before a round is scheduled: round i is scheduled when step
// i - depth ends.
std::int64_t EngineLoop::before(std::optional<FineSpan> until, const StepTime& time, Tokens context,
                                Tokens growth, std::int64_t steps, FineSpan start) const {
  if (!until) {
    return steps;
  }
  if (engine_.depth() == 1) {
    return steps_starting_within(time, context, growth, steps, *until - start);
  }
  if (*until <= start) {
    return 1;
  }
  return steps_starting_within(time, context, growth, steps - 1, *until - start) + 1;
}

}  // namespace oomcast
