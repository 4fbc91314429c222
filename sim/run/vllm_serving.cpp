// vLLM behind the serving loop.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "models/attention_kinds.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/vllm/scheduler.hpp"
#include "sim/engines/vllm/step_peaks.hpp"
#include "sim/run/allocator_steps.hpp"
#include "sim/run/class_steps.hpp"
#include "sim/run/scheduler_serving.hpp"
#include "sim/run/vllm_handoff.hpp"
#include "sim/run/vllm_offload.hpp"

namespace oomcast {
namespace {

KvUse use_of(const vllm::PoolCounts& blocks) {
  return {PoolUse{blocks.used.count(), blocks.cached.count()}};
}

class VllmServing final : public SchedulerServing<Plan::Vllm, vllm::Scheduler> {
 public:
  explicit VllmServing(Plan::Vllm plan) : VllmServing(settings(plan), std::move(plan)) {}

  [[nodiscard]] std::vector<RankBooks> open_books(Detail detail, bool remembers) override {
    std::vector<RankBooks> books;
    for (vllm::StageState& stage : plan_.startup.stages) {
      std::unique_ptr<StepMemory> steps;
      if (detail == Detail::kAllocator) {
        steps = std::make_unique<AllocatorSteps>(plan_.deployment, stage, plan_.startup.blocks,
                                                 remembers);
      } else {
        steps = std::make_unique<ClassSteps>(
            stage, std::make_unique<vllm::StepPeaks>(plan_.deployment, stage.stage));
      }
      books.emplace_back(stage, std::move(steps), UnitBytes{stage.kv.block_bytes()});
    }
    return books;
  }

  std::optional<RequestOutcome> add(const workloads::TraceRequest& request, RequestId id) override {
    auto spec = spec_of<vllm::RequestSpec>(request, id);
    spec.arrival_time = request.arrival.seconds();
    spec.priority = request.priority;
    spec.tie_order = id;
    if (handoff_) {
      handoff_->enter(spec);
    }
    switch (scheduler_.add(spec)) {
      case vllm::Added::kQueued:
        return std::nullopt;
      case vllm::Added::kEmptyPrompt:
        return RequestOutcome::kRejectedEmptyPrompt;
      case vllm::Added::kPromptTooLong:
        return RequestOutcome::kRejectedTooLong;
      case vllm::Added::kNoOutput:
        return RequestOutcome::kRejectedNoOutput;
      case vllm::Added::kDuplicateId:
        break;
    }
    OOMCAST_CHECK(false, "request {} offered twice", id);
  }

  Round schedule() override {
    const vllm::StepPlan& plan = scheduler_.schedule();
    if (handoff_) {
      handoff_->note(plan);
    }
    if (offload_) {
      offload_->note(plan);
    }
    return {plan, plan.admitted, plan.preempted, {}, use_of(plan.blocks)};
  }

  RoundResults complete() override {
    const vllm::StepOutput& output = handoff_   ? scheduler_.complete(handoff_->report())
                                     : offload_ ? scheduler_.complete(offload_->report())
                                                : scheduler_.complete();
    if (handoff_) {
      handoff_->note(output);
    }
    if (offload_) {
      offload_->note(output);
    }
    ended_.clear();
    for (const RequestId id : output.failed) {
      ended_.push_back({id, RequestOutcome::kFailed, Tokens{0}});
    }
    return {output.first_token, ended(output.finished)};
  }

  void fall_idle() override { scheduler_.drop_empty_batches(); }

  [[nodiscard]] bool stalled() const override {
    if (handoff_) {
      return handoff_->quiet();
    }
    if (offload_) {
      return offload_->quiet();
    }
    return scheduler_.stall().has_value() && !scheduler_.work_in_flight();
  }

  [[nodiscard]] Outcome stall_outcome() const override {
    const vllm::Stall stall = scheduler_.stall().value_or(vllm::Stall{});
    Outcome outcome;
    outcome.kind = OutcomeKind::kKvTooSmall;
    outcome.leaf = Leaf::kKvPool;
    outcome.short_by = plan_.startup.stages.front().kv.block_bytes() *
                       std::max<std::int64_t>(stall.needed.count() - stall.available.count(), 0);
    outcome.message = fmt::format(
        "the request at the head of the queue can never be admitted: it needs {} blocks and the "
        "pool can free {}; everything behind it waits",
        stall.needed.count(), stall.available.count());
    return outcome;
  }

  // A host tier's copies are told of step by step.
  [[nodiscard]] std::int64_t steady_steps() const override {
    return offload_ ? 0 : SchedulerServing::steady_steps();
  }
  SteadyUse advance_steady(std::int64_t rounds) override {
    const vllm::SteadyJump& jump = scheduler_.advance_steady(rounds);
    ended_.clear();
    return {use_of(jump.first),
            use_of(jump.last),
            jump.last_growth,
            {jump.first_token, ended(jump.finished)},
            use_of(jump.second)};
  }

  [[nodiscard]] std::int64_t preemptions() const override { return scheduler_.preemptions(); }

  [[nodiscard]] bool steps_with_replicas() const override {
    return models::has_experts(*plan_.deployment.model);
  }
  // v1/engine/core_client.py get_core_engine_for_request
  [[nodiscard]] std::optional<std::int64_t> load() const override {
    constexpr std::int64_t kWaitingWeighs = 4;
    return kWaitingWeighs * waiting() + running();
  }

  bool take_role(KvHandoff::Role role) override {
    const auto transfer = vllm::kv_transfer(plan_.deployment.launch);
    if (!transfer || !vllm::plays(transfer->connector, role == KvHandoff::Role::kPrefill)) {
      return false;
    }
    handoff_.emplace(scheduler_, role, transfer->lease);
    return true;
  }
  [[nodiscard]] KvHandoff* handoff() override { return handoff_ ? &*handoff_ : nullptr; }
  [[nodiscard]] HostCopies* host_copies() override {
    return offload_ ? &offload_->copies() : nullptr;
  }

 private:
  // By reference: the settings are read before the plan moves.
  VllmServing(const vllm::SchedulerConfig& config, Plan::Vllm&& plan)
      : SchedulerServing(std::move(plan), config) {
    if (const auto pool = vllm::host_pool(plan_.deployment)) {
      offload_.emplace(scheduler_, *pool, plan_.deployment.gpu.host_link_bandwidth);
    }
  }

  std::span<const EndedRequest> ended(std::span<const RequestId> finished) {
    for (const RequestId id : finished) {
      ended_.push_back({id, RequestOutcome::kFinished, std::nullopt});
    }
    return ended_;
  }

  // A startup that failed leaves no pool; its scheduler is never asked.
  static vllm::SchedulerConfig settings(const Plan::Vllm& plan) {
    return plan.startup.outcome.fits() ? plan.deployment.scheduler_config(plan.startup.blocks)
                                       : vllm::SchedulerConfig{};
  }

  std::optional<VllmHandoff> handoff_;
  std::optional<VllmOffload> offload_;
};

}  // namespace

std::unique_ptr<ServingEngine> serve(Plan::Vllm plan) {
  return std::make_unique<VllmServing>(std::move(plan));
}

}  // namespace oomcast
