// SGLang behind the serving loop.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "models/attention_kinds.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/sglang/scheduler.hpp"
#include "sim/engines/sglang/serving.hpp"
#include "sim/engines/sglang/step_peaks.hpp"
#include "sim/run/class_steps.hpp"
#include "sim/run/scheduler_serving.hpp"
#include "sim/run/sglang_handoff.hpp"
#include "sim/run/sglang_hicache.hpp"

namespace oomcast {
namespace {

PoolUse in_slots(const sglang::PoolCounts& slots) {
  return {slots.used.count(), slots.cached.count()};
}

// Down to whole bytes: what packed formats have beyond them counts as free.
Bytes slot_bytes(double bytes) { return Bytes{static_cast<std::int64_t>(std::floor(bytes))}; }

class SglangServing final : public SchedulerServing<Plan::Sglang, sglang::Scheduler> {
 public:
  explicit SglangServing(Plan::Sglang plan) : SglangServing(settings(plan), std::move(plan)) {}

  [[nodiscard]] std::vector<RankBooks> open_books(Detail /*detail*/, bool /*remembers*/) override {
    std::vector<RankBooks> books;
    for (sglang::StageState& stage : plan_.startup.stages) {
      // cuBLAS makes its workspace for the stream that forward passes run on.
      std::vector<FirstStepTensor> first = {
          {Leaf::kWorkspaceGemm, plan_.deployment.cublas_workspace}};
      books.emplace_back(
          stage,
          std::make_unique<ClassSteps>(
              stage,
              std::make_unique<sglang::StepPeaks>(plan_.deployment, stage.stage, stage.plan.tokens),
              std::move(first)),
          UnitBytes{slot_bytes(stage.sizes.full_token),
                    has_states_ ? stage.sizes.state : slot_bytes(stage.sizes.window_token)});
    }
    return books;
  }

  std::optional<RequestOutcome> add(const workloads::TraceRequest& request, RequestId id) override {
    auto spec = spec_of<sglang::RequestSpec>(request, id);
    spec.tie_order = id;
    if (has_priorities_) {
      spec.priority = request.priority;
    }
    spec.awaits_handshake = handoff_.has_value();
    switch (scheduler_.add(spec)) {
      case sglang::Added::kQueued:
        if (handoff_) {
          handoff_->add(spec);
        }
        return std::nullopt;
      case sglang::Added::kQueuedToAbort:
        too_long_.insert(id);
        return std::nullopt;
      case sglang::Added::kQueueFull:
        refused_.insert(id);
        return RequestOutcome::kRejectedQueueFull;
      case sglang::Added::kEmptyPrompt:
        return RequestOutcome::kRejectedEmptyPrompt;
      case sglang::Added::kNoOutput:
        return RequestOutcome::kRejectedNoOutput;
      case sglang::Added::kTooLong:
        refused_.insert(id);
        return RequestOutcome::kRejectedTooLong;
      case sglang::Added::kDuplicateId:
        break;
    }
    OOMCAST_CHECK(false, "request {} offered twice", id);
  }

  Abort abort(RequestId id) override {
    const Abort abort = scheduler_.abort(id);
    if (abort.output) {
      refused_.insert(id);  // the next plan tells of it again
    }
    return abort;
  }

  Round schedule() override {
    if (hicache_) {
      hicache_->report();
    }
    const sglang::StepPlan& plan = scheduler_.schedule();
    if (hicache_) {
      hicache_->note(plan);
    }
    thrown_back_.assign(plan.retracted.begin(), plan.retracted.end());
    thrown_back_.insert(thrown_back_.end(), plan.preempted.begin(), plan.preempted.end());
    dropped_.clear();
    for (const RequestId id : plan.aborted) {
      // Whoever was refused has heard of it.
      if (refused_.erase(id) == 0) {
        dropped_.push_back({id, RequestOutcome::kAborted, Tokens{0}});
      }
    }
    for (const sglang::FinishedRequest& request : plan.transfers.finished) {
      dropped_.push_back({request.id, RequestOutcome::kFinished, request.output});
    }
    Round round{plan, plan.admitted, thrown_back_, dropped_,
                use_of(plan.slots, plan.window_slots, plan.state_slots, plan.running)};
    if (handoff_) {
      handoff_->note(plan);
      round.handed_token = plan.transfers.joined;
    }
    if (plan.error != sglang::EngineError::kNone) {
      failure_ = engine_error(plan);
      round.failure = &failure_;
    }
    return round;
  }

  RoundResults complete() override {
    const sglang::StepOutput& output = scheduler_.complete();
    if (handoff_) {
      handoff_->note(output);
    }
    if (hicache_) {
      hicache_->note(output);
    }
    ended_.clear();
    for (const sglang::FinishedRequest& request : output.finished) {
      if (request.reason != sglang::FinishReason::kAbort) {
        ended_.push_back({request.id, RequestOutcome::kFinished, request.output});
      } else {
        const bool too_long = too_long_.erase(request.id) > 0;
        ended_.push_back({request.id,
                          too_long ? RequestOutcome::kRejectedTooLong : RequestOutcome::kAborted,
                          too_long ? Tokens{0} : request.output});
      }
    }
    return {output.first_token, ended_};
  }

  // The event loop turns without work; twice, as under overlap it notices a round late.
  void fall_idle() override {
    complete_full_pipeline();
    for (int round = 0; round < 2 && scheduler_.idle(); ++round) {
      if (hicache_) {
        hicache_->report();
      }
      scheduler_.schedule();
      refused_.clear();
      complete_full_pipeline();
    }
  }

  [[nodiscard]] bool stalled() const override {
    return handoff_ ? handoff_->quiet() : scheduler_.stall().has_value();
  }

  [[nodiscard]] Outcome stall_outcome() const override {
    const sglang::Stall stall = scheduler_.stall().value_or(sglang::Stall{});
    Outcome outcome;
    outcome.kind = OutcomeKind::kKvTooSmall;
    outcome.leaf = Leaf::kKvPool;
    outcome.message = fmt::format(
        "the request at the head of the queue can never be admitted: it needs more than the {} "
        "slots that the pool can free; everything behind it waits",
        stall.available.count());
    return outcome;
  }

  [[nodiscard]] std::int64_t steady_steps() const override {
    return hicache_ && hicache_->has_news() ? 0 : SchedulerServing::steady_steps();
  }
  SteadyUse advance_steady(std::int64_t rounds) override {
    const sglang::SteadyJump& jump = scheduler_.advance_steady(rounds);
    const std::int64_t running = scheduler_.running();
    const sglang::StateCounts states = scheduler_.state_slots();
    return {use_of(jump.first, {}, states, running), use_of(jump.last, {}, states, running),
            jump.last_growth};
  }

  [[nodiscard]] std::int64_t preemptions() const override { return scheduler_.preemptions(); }

  [[nodiscard]] bool steps_with_replicas() const override {
    return plan_.deployment.attention_dp > 1;
  }

  bool take_role(KvHandoff::Role role) override {
    return handoff_ &&
           plan_.deployment.role ==
               (role == KvHandoff::Role::kPrefill ? sglang::Role::kPrefill : sglang::Role::kDecode);
  }
  [[nodiscard]] KvHandoff* handoff() override { return handoff_ ? &*handoff_ : nullptr; }
  [[nodiscard]] HostCopies* host_copies() override {
    return hicache_ ? &hicache_->copies() : nullptr;
  }

 private:
  // By reference: the settings are read before the plan moves.
  SglangServing(const sglang::SchedulerConfig& config, Plan::Sglang&& plan)
      : SchedulerServing(std::move(plan), config),
        has_priorities_(config.enable_priority_scheduling),
        has_states_(models::has_recurrent_state(*plan_.deployment.model)) {
    if (config.role != sglang::Role::kMixed) {
      handoff_.emplace(scheduler_, config);
    }
    if (config.host_tier) {
      const sglang::StageState& stage = plan_.startup.stages.front();
      hicache_.emplace(scheduler_,
                       SglangHicache::Pool{stage.host->bytes, slot_bytes(stage.sizes.full_token),
                                           plan_.deployment.tp, stage.sizes.full_layers},
                       plan_.deployment.gpu.host_link_bandwidth);
    }
  }

  // The second pool holds windows, or states. A server of one role has a state for each running
  // request.
  [[nodiscard]] KvUse use_of(const sglang::PoolCounts& slots, const sglang::PoolCounts& window,
                             const sglang::StateCounts& states, std::int64_t running) const {
    if (!has_states_) {
      return {in_slots(slots), in_slots(window)};
    }
    return {in_slots(slots),
            states.total > 0 ? PoolUse{states.used, states.cached} : PoolUse{running, 0}};
  }

  // A startup that failed leaves no pool; its scheduler is never asked.
  static sglang::SchedulerConfig settings(const Plan::Sglang& plan) {
    if (!plan.startup.outcome.fits()) {
      sglang::SchedulerConfig unused;
      unused.pool_tokens = Tokens{1};
      return unused;
    }
    Problems problems;
    sglang::SchedulerConfig config = sglang::scheduler_config(
        plan.deployment, plan.startup.plan, plan.startup.stages.front().host, problems);
    problems.raise_if_any();
    return config;
  }

  static Outcome engine_error(const sglang::StepPlan& plan) {
    Outcome outcome;
    outcome.kind = OutcomeKind::kRuntimeOom;
    outcome.leaf = Leaf::kKvPool;
    const char* what = plan.error == sglang::EngineError::kPrefillOutOfMemory
                           ? "Prefill out of memory. Try to lower your batch size."
                       : plan.error == sglang::EngineError::kDecodeOutOfMemory
                           ? "Decode out of memory. Try to lower your batch size."
                           : "No space left for only one request";
    outcome.message = fmt::format("{}\nAvailable tokens: {} (free {} + cached {})", what,
                                  plan.slots.free.count() + plan.slots.cached.count(),
                                  plan.slots.free.count(), plan.slots.cached.count());
    return outcome;
  }

  void complete_full_pipeline() {
    while (scheduler_.batches_in_flight() >= scheduler_.depth()) {
      scheduler_.complete();
    }
  }

  bool has_priorities_;
  bool has_states_;               // recurrent layers
  std::set<RequestId> too_long_;  // queued, to be aborted with their first token
  std::set<RequestId> refused_;   // found the queue full, or too long for one role alone
  std::vector<RequestId> thrown_back_;
  std::vector<EndedRequest> dropped_;
  Outcome failure_;
  std::optional<SglangHandoff> handoff_;
  std::optional<SglangHicache> hicache_;
};

}  // namespace

std::unique_ptr<ServingEngine> serve(Plan::Sglang plan) {
  return std::make_unique<SglangServing>(std::move(plan));
}

}  // namespace oomcast
