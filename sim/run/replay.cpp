#include "sim/run/replay.hpp"

#include <algorithm>
#include <deque>
#include <optional>

#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"
#include "sim/run/rank_books.hpp"
#include "sim/run/request_log.hpp"
#include "sim/run/serving_engine.hpp"

namespace oomcast {
namespace {

constexpr std::int64_t kProgressEvery = 4096;  // requests

FineSpan fine(SimTime at) { return FineSpan{at.since_start()}; }
SimTime instant(FineSpan since_start) { return SimTime{since_start.floor()}; }

class Serving {
 public:
  Serving(ServingEngine& engine, const StepTimeModel& model, workloads::RequestStream& stream,
          RequestSink& sink, const ReplayOptions& options, RunRecord& record)
      : engine_(engine),
        deployment_(engine.deployment()),
        model_(model),
        stream_(stream),
        options_(options),
        record_(record),
        served_(engine.startup().fits()),
        log_(sink, record.totals, digest_),
        books_(engine.open_books(options.detail, options.remembers_steps)) {
    record_.totals.kv_pool = books_.front().pool_bytes();
    record_.outcome = engine.startup();
  }

  void run() {
    while (served_ && !record_outcome_) {
      if (options_.stop != nullptr && *options_.stop != 0) {
        throw Interrupted();
      }
      admit_arrivals();
      if (engine_.idle()) {
        if (!wait_for_arrival()) {
          break;
        }
        continue;
      }
      if ((options_.step_by_step || !jump()) && !step()) {
        break;
      }
    }
    finish();
  }

 private:
  void admit_arrivals() {
    for (auto due = stream_.next_arrival(); due && fine(*due) <= now_;
         due = stream_.next_arrival()) {
      stream_.take(request_);
      offer(request_);
    }
  }

  void offer(const workloads::TraceRequest& request) {
    const std::int64_t index = open_row(request).index;
    if (const auto refusal = engine_.add(request, static_cast<RequestId>(index))) {
      reject(index, *refusal);
    }
    if (options_.progress && offered_ % kProgressEvery == 0) {
      options_.progress(offered_);
    }
  }

  RequestRow& open_row(const workloads::TraceRequest& request) {
    RequestRow& row = log_.open(offered_++);
    row.id = request.id;
    row.arrival = request.arrival;
    row.input = request.input;
    row.output = request.output;
    return row;
  }

  // Only clients that wait for answers need to hear of them.
  void answered(std::int64_t index, SimTime at) {
    if (stream_.is_closed_loop()) {
      stream_.on_finished(index, at);
    }
  }

  void reject(std::int64_t index, RequestOutcome outcome) {
    RequestRow& row = log_.at(index);
    row.outcome = outcome;
    row.output = Tokens{0};
    answered(index, instant(now_));
    log_.close(index);
  }

  // One round of the engine: schedule a batch, and once the pipeline is full take the output of the
  // oldest. False when nothing can ever happen again.
  bool step() {
    const Round round = engine_.schedule();
    const bool runs = round.totals.tokens > Tokens{0};
    const FineSpan start = std::max(now_, free_from_);
    for (const Admission& admission : round.admitted) {
      if (!admission.resumed) {
        RequestRow& row = log_.at(static_cast<std::int64_t>(admission.id));
        row.first_scheduled = instant(start);
        row.cached = admission.hit;
      }
    }
    for (const RequestId id : round.preempted) {
      ++log_.at(static_cast<std::int64_t>(id)).preemptions;
    }
    end_requests(round.dropped);
    if (round.failure != nullptr) {
      fail(*round.failure);
      return false;
    }
    if (runs) {
      ++record_.totals.steps;
      digest_.add_word(static_cast<std::uint64_t>(round.totals.tokens.count()));
      launch(round, start);
    } else {
      if (engine_.stalled()) {
        return wait_for_arrival();
      }
      ends_.push_back(start);
    }
    if (engine_.batches_in_flight() == engine_.depth()) {
      now_ = std::max(now_, ends_.front());
      ends_.pop_front();
      take(engine_.complete());
    }
    return true;
  }

  // Nothing happens until a request arrives. False if none will.
  bool wait_for_arrival() {
    engine_.fall_idle();
    ends_.assign(static_cast<std::size_t>(engine_.batches_in_flight()), now_);
    const auto due = stream_.next_arrival();
    if (!due) {
      return false;
    }
    now_ = std::max(now_, fine(*due));
    return true;
  }

  void fail(const Outcome& outcome) {
    record_.outcome = outcome;
    record_.outcome.phase = "runtime";
    record_.outcome.rank = 0;
    record_outcome_ = true;
  }

  void launch(const Round& round, FineSpan start) {
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
    const FineSpan took =
        plan.prefill_requests == 0 && plan.sampled_rows == plan.requests
            ? decode_time(plan.decode_requests, plan.decode_context).at(plan.decode_context)
            : model_.time_of(shape).at(plan.decode_context);
    // Stages work on different batches: the first is free again when its share is done, and a batch
    // leaves the last stage no earlier than its own share after the batch before it.
    const FineSpan share = FineSpan::from_ticks(took.ticks() / deployment_.pp);
    const FineSpan behind = ends_.empty() ? FineSpan{} : ends_.back() + share;
    ends_.push_back(std::max(start + took, behind));
    free_from_ = start + share;
    const StepRun run{
        {plan.tokens, plan.sampled_rows, plan.prefill_requests == 0}, 1, start, {}, {}};
    post(run, round.kv, plan.running, plan.waiting);
  }

  void post(const StepRun& run, const KvUse& kv, std::int64_t running, std::int64_t waiting) {
    for (RankBooks& books : books_) {
      if (auto outcome = books.run(run)) {
        record_.outcome = std::move(*outcome);
        record_outcome_ = true;
        break;
      }
    }
    if (!record_outcome_ || books_.front().shows_failure()) {
      sample(run.start_of(0), kv, running, waiting);
    }
  }

  void sample(SimTime at, const KvUse& kv, std::int64_t running, std::int64_t waiting) {
    const ServingCounts counts{kv, running, waiting, engine_.preemptions()};
    for (RankBooks& books : books_) {
      books.sample(at, counts);
    }
    const Bytes used = books_.front().used_bytes(kv);
    if (used > record_.totals.kv_peak) {
      record_.totals.kv_peak = used;
      record_.totals.kv_peak_at = at;
    }
  }

  void take(const RoundResults& results) {
    for (const RequestId id : results.first_token) {
      log_.at(static_cast<std::int64_t>(id)).first_token = instant(now_);
    }
    end_requests(results.ended);
  }

  void end_requests(std::span<const EndedRequest> ended) {
    for (const EndedRequest& request : ended) {
      const auto index = static_cast<std::int64_t>(request.id);
      RequestRow& row = log_.at(index);
      row.finish = instant(now_);
      row.outcome = request.outcome;
      row.output =
          request.output.value_or(std::min(row.output, deployment_.max_model_len - row.input));
      last_finish_ = row.finish;
      answered(index, row.finish);
      log_.close(index);
    }
  }

  // Passes as many like rounds as end before the next arrival, within one bucket of the timeline.
  // False when there are none.
  bool jump() {
    const std::int64_t depth = engine_.depth();
    if (depth > 2 || engine_.batches_in_flight() != depth - 1) {
      return false;
    }
    const std::int64_t certain = engine_.steady_steps();
    if (certain < 2) {
      return false;
    }
    const SteadyShape steady = engine_.steady_shape();
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
                                  fine(books_.front().bucket_end(first)) - start);
    steps = before_next_arrival(time, steady.first_context, growth, steps, start);
    if (steps < 2) {
      return false;
    }
    const SteadyUse jumped = engine_.advance_steady(steps);
    const FineSpan last_start = start + sum_of_steps(time, steady.first_context, growth, steps - 1);
    const FineSpan end = start + sum_of_steps(time, steady.first_context, growth, steps);
    record_.totals.steps += steps;
    const StepRun run{
        {growth, steady.decode_requests, true}, steps, start, time, steady.first_context};
    post(run, jumped.first, engine_.running(), engine_.waiting());
    if (!record_outcome_) {
      sample(instant(last_start), jumped.last, engine_.running(), engine_.waiting());
    }
    for (std::int64_t i = 0; i < steps; ++i) {
      digest_.add_word(static_cast<std::uint64_t>(steady.decode_requests));
    }
    // With one batch in flight the last of the jump still is, and the clock stands at its start.
    free_from_ = end;
    now_ = depth == 1 ? end : last_start;
    if (depth == 2) {
      ends_.front() = end;
    }
    return true;
  }

  // Time of a step of `requests` decodes and nothing else; remembered, as most steps are of this
  // kind and few sizes.
  const StepTime& decode_time(std::int64_t requests, Tokens context) {
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

  // Steps for which the time function stays the same.
  static std::int64_t within_limit(std::int64_t steps, const SteadyShape& steady,
                                   const StepTime& time) {
    const std::int64_t room = time.valid_to_context - steady.first_context.count();
    return std::min(steps, room / steady.decode_requests + 1);
  }

  // Arrivals join before a round is scheduled: round i is scheduled when step i - depth ends.
  [[nodiscard]] std::int64_t before_next_arrival(const StepTime& time, Tokens context,
                                                 Tokens growth, std::int64_t steps,
                                                 FineSpan start) const {
    const auto due = stream_.next_arrival();
    if (!due) {
      return steps;
    }
    const FineSpan until = fine(*due);
    if (engine_.depth() == 1) {
      return steps_starting_within(time, context, growth, steps, until - start);
    }
    if (until <= start) {
      return 1;
    }
    return steps_starting_within(time, context, growth, steps - 1, until - start) + 1;
  }

  void finish() {
    if (served_ && !record_outcome_ && !engine_.idle()) {
      fail(engine_.stall_outcome());
    }
    mark_unfinished();
    record_.totals.preemptions = engine_.preemptions();
    record_.totals.prefix_hit_tokens = engine_.prefix_hit_tokens();
    record_.totals.makespan = last_finish_ > SimTime{} ? last_finish_ - SimTime{} : Nanos{0};
    for (RankBooks& books : books_) {
      record_.ranks.push_back(books.finish());
      for (const PhaseRecord& phase : record_.ranks.back().startup) {
        for (const Bytes bytes : phase.device) {
          digest_.add_word(static_cast<std::uint64_t>(bytes.count()));
        }
      }
      for (const TimelineRow& row : record_.ranks.back().timeline) {
        add_to_digest(digest_, row);
      }
    }
    record_.outcome_json = outcome_json(record_.outcome);
    digest_.add(name_of(record_.outcome.kind));
    record_.digest = digest_.hex();
  }

  // Requests of the trace that never reached the engine count as not admitted too.
  void mark_unfinished() {
    log_.for_each_open([](RequestRow& row) {
      if (row.outcome == RequestOutcome::kNotAdmitted &&
          row.first_scheduled != RequestRow::kNever) {
        row.outcome = RequestOutcome::kInterrupted;
      }
    });
    log_.close_all();
    while (stream_.next_arrival()) {
      stream_.take(request_);
      RequestRow& row = open_row(request_);
      log_.close(row.index);
    }
  }

  ServingEngine& engine_;
  const EngineDeployment& deployment_;
  const StepTimeModel& model_;
  workloads::RequestStream& stream_;
  const ReplayOptions& options_;
  RunRecord& record_;
  bool served_;  // the startup came through
  Digest digest_;
  RequestLog log_;
  std::vector<RankBooks> books_;
  workloads::TraceRequest request_;
  std::int64_t offered_ = 0;
  FineSpan now_;        // when the next batch is scheduled
  FineSpan free_from_;  // when the first stage can start another batch
  std::vector<std::optional<StepTime>> decode_times_;  // by number of requests
  std::deque<FineSpan> ends_;                          // of the batches in flight
  SimTime last_finish_;
  bool record_outcome_ = false;
};

}  // namespace

void replay(Plan plan, const StepTimeModel& model, workloads::RequestStream& stream,
            RequestSink& sink, const ReplayOptions& options, RunRecord& record) {
  const std::unique_ptr<ServingEngine> engine = make_serving_engine(std::move(plan));
  Serving(*engine, model, stream, sink, options, record).run();
}

}  // namespace oomcast
