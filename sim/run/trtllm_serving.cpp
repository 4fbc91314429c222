// TensorRT-LLM behind the serving loop.
#include <utility>

#include "sim/core/error.hpp"
#include "sim/engines/trtllm/scheduler.hpp"
#include "sim/engines/trtllm/serving.hpp"
#include "sim/run/class_steps.hpp"
#include "sim/run/serving_engine.hpp"

namespace oomcast {
namespace {

KvUse use_of(const trtllm::PoolCounts& blocks) {
  return {PoolUse{blocks.used.count(), blocks.cached.count()}};
}

class TrtllmServing final : public ServingEngine {
 public:
  explicit TrtllmServing(Plan::Trtllm plan) : plan_(std::move(plan)), scheduler_(settings(plan_)) {}

  [[nodiscard]] const EngineDeployment& deployment() const override { return plan_.deployment; }
  [[nodiscard]] const Outcome& startup() const override { return plan_.startup.outcome; }

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
    trtllm::RequestSpec spec;
    spec.id = id;
    spec.prompt_len = request.input;
    spec.prompt = request.content;
    spec.output_continues_prompt = request.output_continues_content;
    spec.max_output = request.output;
    switch (scheduler_.add(spec)) {
      case trtllm::Added::kQueued:
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
    return {plan, plan.admitted, plan.paused, {}, use_of(plan.blocks)};
  }

  RoundResults complete() override {
    const trtllm::StepOutput& output = scheduler_.complete();
    ended_.clear();
    for (const trtllm::FinishedRequest& request : output.finished) {
      ended_.push_back({request.id, RequestOutcome::kFinished, request.output});
    }
    return {output.first_token, ended_};
  }

  void fall_idle() override { scheduler_.drop_empty_batches(); }

  [[nodiscard]] std::int64_t depth() const override { return scheduler_.depth(); }
  [[nodiscard]] std::int64_t batches_in_flight() const override {
    return scheduler_.batches_in_flight();
  }
  [[nodiscard]] bool idle() const override { return scheduler_.idle(); }
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

  [[nodiscard]] std::int64_t steady_steps() const override { return scheduler_.steady_steps(); }
  [[nodiscard]] SteadyShape steady_shape() const override { return scheduler_.steady_shape(); }
  SteadyUse advance_steady(std::int64_t rounds) override {
    const trtllm::SteadyJump& jump = scheduler_.advance_steady(rounds);
    return {use_of(jump.first), use_of(jump.last)};
  }

  [[nodiscard]] std::int64_t running() const override { return scheduler_.running(); }
  [[nodiscard]] std::int64_t waiting() const override { return scheduler_.waiting(); }
  [[nodiscard]] std::int64_t preemptions() const override { return scheduler_.pauses(); }
  [[nodiscard]] Tokens prefix_hit_tokens() const override { return scheduler_.prefix_hit_tokens(); }

 private:
  // A startup that failed leaves no pool; its scheduler is never asked.
  static trtllm::SchedulerConfig settings(const Plan::Trtllm& plan) {
    const bool served = plan.startup.outcome.fits();
    return trtllm::scheduler_config(plan.deployment,
                                    Blocks{served ? plan.startup.report.kv_blocks.value_or(1) : 1});
  }

  Plan::Trtllm plan_;
  trtllm::Scheduler scheduler_;
  std::vector<EndedRequest> ended_;
};

}  // namespace

std::unique_ptr<ServingEngine> serve(Plan::Trtllm plan) {
  return std::make_unique<TrtllmServing>(std::move(plan));
}

}  // namespace oomcast
