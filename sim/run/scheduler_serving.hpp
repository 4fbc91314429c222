// What a serving engine only passes on to its scheduler, alike for every engine.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "sim/run/serving_engine.hpp"

namespace oomcast {

// Started: one of Plan's engines. An engine adds what its scheduler says in words of its own.
template <typename Started, typename Scheduler>
class SchedulerServing : public ServingEngine {
 public:
  [[nodiscard]] const EngineDeployment& deployment() const override { return plan_.deployment; }
  [[nodiscard]] const Outcome& startup() const override { return plan_.startup.outcome; }

  Abort abort(RequestId id) override { return scheduler_.abort(id); }

  [[nodiscard]] std::int64_t depth() const override { return scheduler_.depth(); }
  [[nodiscard]] std::int64_t batches_in_flight() const override {
    return scheduler_.batches_in_flight();
  }
  [[nodiscard]] bool idle() const override { return scheduler_.idle(); }

  [[nodiscard]] std::int64_t steady_steps() const override { return scheduler_.steady_steps(); }
  [[nodiscard]] SteadyShape steady_shape() const override { return scheduler_.steady_shape(); }

  [[nodiscard]] std::int64_t running() const override { return scheduler_.running(); }
  [[nodiscard]] std::int64_t waiting() const override { return scheduler_.waiting(); }
  [[nodiscard]] Tokens prefix_hit_tokens() const override { return scheduler_.prefix_hit_tokens(); }

 protected:
  template <typename Config>
  SchedulerServing(Started plan, const Config& config)
      : plan_(std::move(plan)), scheduler_(config) {}

  // What every engine asks of a request.
  template <typename RequestSpec>
  static RequestSpec spec_of(const workloads::TraceRequest& request, RequestId id) {
    RequestSpec spec;
    spec.id = id;
    spec.prompt_len = request.input;
    spec.prompt = request.content;
    spec.output_continues_prompt = request.output_continues_content;
    spec.max_output = request.output;
    return spec;
  }

  Started plan_;
  Scheduler scheduler_;
  std::vector<EndedRequest> ended_;  // of the round that complete() last spoke of
};

}  // namespace oomcast
