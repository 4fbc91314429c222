#include "sim/run/replay.hpp"

#include <algorithm>
#include <deque>
#include <optional>

#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/vllm/scheduler.hpp"
#include "sim/run/plan.hpp"
#include "sim/run/rank_books.hpp"
#include "sim/run/request_log.hpp"

namespace oomcast {
namespace {

constexpr std::int64_t kProgressEvery = 4096;  // requests

FineSpan fine(SimTime at) { return FineSpan{at.since_start()}; }
SimTime instant(FineSpan since_start) { return SimTime{since_start.floor()}; }

// A startup that failed leaves no pool; its scheduler is never asked.
vllm::SchedulerConfig scheduler_for(const vllm::Deployment& deployment,
                                    const vllm::Startup& startup) {
  return startup.outcome.fits() ? deployment.scheduler_config(startup.blocks)
                                : vllm::SchedulerConfig{};
}

class Serving {
 public:
  Serving(const vllm::Deployment& deployment, vllm::Startup startup, const StepTimeModel& model,
          workloads::RequestStream& stream, RequestSink& sink, const ReplayOptions& options,
          RunRecord& record)
      : deployment_(deployment),
        model_(model),
        stream_(stream),
        options_(options),
        record_(record),
        served_(startup.outcome.fits()),
        scheduler_(scheduler_for(deployment, startup)),
        log_(sink, record.totals, digest_) {
    for (vllm::StageState& stage : startup.stages) {
      books_.emplace_back(deployment_, std::move(stage), startup.blocks, options_.detail,
                          options_.remembers_steps);
    }
    record_.totals.kv_pool = books_.front().pool_bytes();
    record_.outcome = std::move(startup.outcome);
  }

  void run() {
    while (served_ && !record_outcome_) {
      if (options_.stop != nullptr && *options_.stop != 0) {
        throw Interrupted();
      }
      admit_arrivals();
      if (scheduler_.idle()) {
        scheduler_.drop_empty_batches();
        ends_.clear();
        const auto due = stream_.next_arrival();
        if (!due) {
          break;
        }
        now_ = std::max(now_, fine(*due));
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
    vllm::RequestSpec spec;
    spec.id = static_cast<vllm::RequestId>(index);
    spec.arrival_time = request.arrival.seconds();
    spec.priority = request.priority;
    spec.tie_order = static_cast<std::uint64_t>(index);
    spec.prompt_len = request.input;
    spec.prompt = request.content;
    spec.output_continues_prompt = request.output_continues_content;
    spec.max_output = request.output;
    switch (scheduler_.add(spec)) {
      case vllm::Added::kQueued:
        break;
      case vllm::Added::kEmptyPrompt:
        reject(index, RequestOutcome::kRejectedEmptyPrompt);
        break;
      case vllm::Added::kPromptTooLong:
        reject(index, RequestOutcome::kRejectedTooLong);
        break;
      case vllm::Added::kNoOutput:
        reject(index, RequestOutcome::kRejectedNoOutput);
        break;
      case vllm::Added::kDuplicateId:
        OOMCAST_CHECK(false, "request {} offered twice", index);
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
    const vllm::StepPlan& plan = scheduler_.schedule();
    const bool runs = plan.tokens > Tokens{0};
    const FineSpan start = std::max(now_, free_from_);
    for (const vllm::Admission& admission : plan.admitted) {
      RequestRow& row = log_.at(static_cast<std::int64_t>(admission.id));
      if (!admission.resumed) {
        row.first_scheduled = instant(start);
        row.cached = admission.hit;
      }
    }
    for (const vllm::RequestId id : plan.preempted) {
      ++log_.at(static_cast<std::int64_t>(id)).preemptions;
    }
    if (runs) {
      ++record_.totals.steps;
      digest_.add_word(static_cast<std::uint64_t>(plan.tokens.count()));
      launch(plan, start);
    } else {
      if (scheduler_.stall() && !scheduler_.work_in_flight()) {
        return wait_for_arrival();
      }
      ends_.push_back(start);
    }
    if (scheduler_.batches_in_flight() == scheduler_.depth()) {
      now_ = std::max(now_, ends_.front());
      ends_.pop_front();
      take(scheduler_.complete());
    }
    return true;
  }

  // The head of the queue can never be admitted: only a new arrival keeps the clock going.
  bool wait_for_arrival() {
    ends_.clear();
    scheduler_.drop_empty_batches();
    const auto due = stream_.next_arrival();
    if (!due) {
      return false;
    }
    now_ = std::max(now_, fine(*due));
    return true;
  }

  void launch(const vllm::StepPlan& plan, FineSpan start) {
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
    const StepRun run{plan.tokens, plan.sampled_rows, 1, start, {}, {}};
    post(run, plan.blocks, plan.running, plan.waiting);
  }

  void post(const StepRun& run, const vllm::PoolCounts& blocks, std::int64_t running,
            std::int64_t waiting) {
    for (RankBooks& books : books_) {
      if (auto outcome = books.run(run)) {
        record_.outcome = std::move(*outcome);
        record_outcome_ = true;
        break;
      }
    }
    if (!record_outcome_ || books_.front().shows_failure()) {
      sample(run.start_of(0), blocks, running, waiting);
    }
  }

  void sample(SimTime at, const vllm::PoolCounts& blocks, std::int64_t running,
              std::int64_t waiting) {
    const ServingCounts counts{blocks.used, blocks.cached, running, waiting,
                               scheduler_.preemptions()};
    for (RankBooks& books : books_) {
      books.sample(at, counts);
    }
    const Bytes used = books_.front().block_bytes() * blocks.used.count();
    if (used > record_.totals.kv_peak) {
      record_.totals.kv_peak = used;
      record_.totals.kv_peak_at = at;
    }
  }

  void take(const vllm::StepOutput& output) {
    for (const vllm::RequestId id : output.first_token) {
      log_.at(static_cast<std::int64_t>(id)).first_token = instant(now_);
    }
    for (const vllm::RequestId id : output.finished) {
      const auto index = static_cast<std::int64_t>(id);
      RequestRow& row = log_.at(index);
      row.finish = instant(now_);
      row.outcome = RequestOutcome::kFinished;
      row.output = std::min(row.output, deployment_.max_model_len - row.input);
      last_finish_ = row.finish;
      answered(index, row.finish);
      log_.close(index);
    }
  }

  // Passes as many like rounds as end before the next arrival, within one bucket of the timeline.
  // False when there are none.
  bool jump() {
    const std::int64_t depth = scheduler_.depth();
    if (depth > 2 || scheduler_.batches_in_flight() != depth - 1) {
      return false;
    }
    const std::int64_t certain = scheduler_.steady_steps();
    if (certain < 2) {
      return false;
    }
    const vllm::SteadyShape steady = scheduler_.steady_shape();
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
    const vllm::SteadyJump& jumped = scheduler_.advance_steady(steps);
    const FineSpan last_start = start + sum_of_steps(time, steady.first_context, growth, steps - 1);
    const FineSpan end = start + sum_of_steps(time, steady.first_context, growth, steps);
    record_.totals.steps += steps;
    const StepRun run{growth, steady.decode_requests, steps, start, time, steady.first_context};
    post(run, jumped.first, scheduler_.running(), scheduler_.waiting());
    if (!record_outcome_) {
      sample(instant(last_start), jumped.last, scheduler_.running(), scheduler_.waiting());
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
  static std::int64_t within_limit(std::int64_t steps, const vllm::SteadyShape& steady,
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
    if (scheduler_.depth() == 1) {
      return steps_starting_within(time, context, growth, steps, until - start);
    }
    if (until <= start) {
      return 1;
    }
    return steps_starting_within(time, context, growth, steps - 1, until - start) + 1;
  }

  void finish() {
    const bool stalled = served_ && !record_outcome_ && !scheduler_.idle();
    if (stalled) {
      const auto stall = scheduler_.stall();
      record_.outcome.kind = OutcomeKind::kKvTooSmall;
      record_.outcome.phase = "runtime";
      record_.outcome.rank = 0;
      record_.outcome.leaf = Leaf::kKvPool;
      record_.outcome.short_by =
          stall ? books_.front().block_bytes() *
                      std::max<std::int64_t>(stall->needed.count() - stall->available.count(), 0)
                : Bytes{0};
      record_.outcome.message = fmt::format(
          "the request at the head of the queue can never be admitted: it needs {} blocks and the "
          "pool can free {}; everything behind it waits",
          stall ? stall->needed.count() : 0, stall ? stall->available.count() : 0);
    }
    mark_unfinished();
    record_.totals.preemptions = scheduler_.preemptions();
    record_.totals.prefix_hit_tokens = scheduler_.prefix_hit_tokens();
    record_.totals.makespan = last_finish_ > SimTime{} ? last_finish_ - SimTime{} : Nanos{0};
    for (std::size_t stage = 0; stage < books_.size(); ++stage) {
      const int first_rank = static_cast<int>(stage) * deployment_.tp;
      record_.ranks.push_back(books_[stage].finish(first_rank, deployment_.tp));
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

  const vllm::Deployment& deployment_;
  const StepTimeModel& model_;
  workloads::RequestStream& stream_;
  const ReplayOptions& options_;
  RunRecord& record_;
  bool served_;  // the startup came through
  vllm::Scheduler scheduler_;
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

void replay(const vllm::Deployment& deployment, vllm::Startup startup, const StepTimeModel& model,
            workloads::RequestStream& stream, RequestSink& sink, const ReplayOptions& options,
            RunRecord& record) {
  Serving(deployment, std::move(startup), model, stream, sink, options, record).run();
}

}  // namespace oomcast
