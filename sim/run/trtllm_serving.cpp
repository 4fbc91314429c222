// TensorRT-LLM behind the serving loop.
#include <tsl/robin_map.h>

#include <optional>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/engines/trtllm/scheduler.hpp"
#include "sim/engines/trtllm/serving.hpp"
#include "sim/run/class_steps.hpp"
#include "sim/run/scheduler_serving.hpp"

namespace oomcast {
namespace {

KvUse use_of(const trtllm::PoolCounts& blocks) {
  return {PoolUse{blocks.used.count(), blocks.cached.count()}};
}

class TrtllmServing final : public SchedulerServing<Plan::Trtllm, trtllm::Scheduler> {
 public:
  explicit TrtllmServing(Plan::Trtllm plan) : TrtllmServing(settings(plan), std::move(plan)) {}

  [[nodiscard]] std::vector<RankBooks> open_books(Detail /*detail*/, bool /*remembers*/) override {
    std::vector<RankBooks> books;
    for (trtllm::StageState& stage : plan_.startup.stages) {
      books.emplace_back(stage,
                         std::make_unique<ClassSteps>(stage, std::make_unique<trtllm::StepPeaks>(
                                                                 plan_.deployment, stage.stage)),
                         UnitBytes{trtllm::kv_token_bytes(plan_.deployment, stage.stage) *
                                   plan_.deployment.tokens_per_block.count()});
    }
    return books;
  }

  std::optional<RequestOutcome> add(const workloads::TraceRequest& request, RequestId id) override {
    auto spec = spec_of<trtllm::RequestSpec>(request, id);
    switch (scheduler_.add(spec)) {
      case trtllm::Added::kQueued:
        if (steps_with_replicas()) {
          active_[id] = request.input;
          active_tokens_ += request.input;
        }
        return std::nullopt;
      case trtllm::Added::kEmptyPrompt:
        return RequestOutcome::kRejectedEmptyPrompt;
      case trtllm::Added::kPromptTooLong:
        return RequestOutcome::kRejectedTooLong;
      case trtllm::Added::kNoOutput:
        break;
    }
    return RequestOutcome::kRejectedNoOutput;
  }

  Round schedule() override {
    const trtllm::StepPlan& plan = scheduler_.schedule();
    if (copies_) {
      note(plan.host);
    }
    return {plan, plan.admitted, plan.paused, {}, use_of(plan.blocks)};
  }

  RoundResults complete() override {
    const trtllm::StepOutput& output = scheduler_.complete();
    ended_.clear();
    for (const trtllm::FinishedRequest& request : output.finished) {
      ended_.push_back({request.id,
                        request.aborted ? RequestOutcome::kAborted : RequestOutcome::kFinished,
                        request.output});
      forget(request.id);
    }
    return {output.first_token, ended_};
  }

  Abort abort(RequestId id) override {
    const Abort abort = scheduler_.abort(id);
    if (abort.output) {
      forget(id);
    }
    return abort;
  }

  void fall_idle() override { scheduler_.drop_empty_batches(); }

  [[nodiscard]] bool stalled() const override { return scheduler_.stalled(); }

  [[nodiscard]] Outcome stall_outcome() const override {
    Outcome outcome;
    outcome.kind = OutcomeKind::kKvTooSmall;
    outcome.leaf = Leaf::kKvPool;
    outcome.message =
        "the first request that waits can never run: after a pause its tokens are more than "
        "max_num_tokens, and chunked prefill is off; everything behind it waits";
    return outcome;
  }

  SteadyUse advance_steady(std::int64_t rounds) override {
    const trtllm::SteadyJump& jump = scheduler_.advance_steady(rounds);
    return {use_of(jump.first), use_of(jump.last), jump.last_growth};
  }

  [[nodiscard]] HostCopies* host_copies() override { return copies_ ? &*copies_ : nullptr; }

  [[nodiscard]] std::int64_t preemptions() const override { return scheduler_.pauses(); }

  [[nodiscard]] bool steps_with_replicas() const override {
    return plan_.deployment.replicas() > 1;
  }
  // Tokens of the prompts it has (facts: TensorRT-LLM 5).
  [[nodiscard]] std::optional<std::int64_t> load() const override { return active_tokens_.count(); }

 private:
  // By reference: the settings are read before the plan moves.
  TrtllmServing(const trtllm::SchedulerConfig& config, Plan::Trtllm&& plan)
      : SchedulerServing(std::move(plan), config),
        block_(trtllm::kv_token_bytes(plan_.deployment, 0) *
               plan_.deployment.tokens_per_block.count()) {
    if (config.host_blocks > Blocks{0}) {
      copies_.emplace(block_ * (config.host_blocks.count() * plan_.deployment.tp),
                      plan_.deployment.gpu.host_link_bandwidth);
    }
  }

  void forget(RequestId id) {
    if (const auto found = active_.find(id); found != active_.end()) {
      active_tokens_ -= found->second;
      active_.erase(found);
    }
  }

  [[nodiscard]] HostCopies::Copy copy_of(Blocks blocks) {
    const Bytes link = block_ * blocks.count();
    return {++copied_, link, link * plan_.deployment.tp};
  }

  // The step waits for both directions, side by side.
  void note(const trtllm::HostTraffic& host) {
    copies_->clear_over();
    if (host.onboarded > Blocks{0}) {
      copies_->load(copy_of(host.onboarded),
                    plan_.deployment.tokens_per_block * host.onboarded.count(), true);
    }
    if (host.offloaded > Blocks{0}) {
      copies_->store_at_start(copy_of(host.offloaded));
      copies_->flush(copied_);
    }
    const Bytes used = block_ * host.used.count();
    copies_->hold(used * plan_.deployment.tp, used);
  }

  // A startup that failed leaves no pool; its scheduler is never asked.
  static trtllm::SchedulerConfig settings(const Plan::Trtllm& plan) {
    const bool served = plan.startup.outcome.fits();
    return trtllm::scheduler_config(plan.deployment,
                                    Blocks{served ? plan.startup.report.kv_blocks.value_or(1) : 1});
  }

  Bytes block_;  // on one rank
  // With replicas: prompts of requests not yet ended.
  tsl::robin_map<RequestId, Tokens> active_;  // never iterated
  Tokens active_tokens_;
  std::optional<HostCopies> copies_;
  HostCopies::Job copied_ = 0;
};

}  // namespace

std::unique_ptr<ServingEngine> serve(Plan::Trtllm plan) {
  return std::make_unique<TrtllmServing>(std::move(plan));
}

}  // namespace oomcast
