#include "sim/engines/sglang/startup.hpp"

#include <memory>

namespace oomcast::sglang {
namespace {

EngineReport make_report(const Deployment& deployment, const StageState& state,
                         const CachePlan& plan, bool sized, bool served) {
  EngineReport report;
  report.total = deployment.device_total();
  report.weights = state.weights;
  report.available_after_load = deployment.assumed.available_after_load.value_or(state.after_load);
  if (!sized) {
    return report;
  }
  report.kv_tokens = plan.tokens.count();
  report.block_size = deployment.page_size.count();
  report.max_running_requests = plan.max_running;
  if (plan.window_tokens > Tokens{0}) {
    report.window_tokens = plan.window_tokens.count();
  }
  report.available_kv = kv_pool_bytes(deployment, plan, state.stage);
  if (plan.state_slots > 0) {
    report.state_slots = plan.state_slots;
    report.state_pool = state_pool_bytes(deployment, plan, state.stage);
  }
  if (state.after_pool > Bytes{0}) {
    report.available_after_pool = state.after_pool;
  }
  if (served) {
    report.available_at_end = state.at_end;
    if (!deployment.decode_sizes.empty()) {
      report.cudagraph = state.decode_drop;
    }
  }
  return report;
}

}  // namespace

Startup simulate_startup(const Deployment& deployment) {
  Startup out;
  std::vector<std::unique_ptr<StageStartup>> stages;
  bool loaded = true;
  bool sized = true;
  bool served = true;
  for (int stage = 0; stage < deployment.pp && sized; ++stage) {
    stages.push_back(std::make_unique<StageStartup>(deployment, stage));
    StageStartup& one = *stages.back();
    sized = one.measure();
    loaded = one.state().after_load > Bytes{0};
    if (!sized) {
      out.outcome = one.outcome();
    } else if (stage == 0 || one.state().plan.tokens < out.plan.tokens) {
      out.plan = one.state().plan;  // every rank takes the smallest pool
    }
  }
  served = sized;
  for (const auto& stage : stages) {
    if (served && !stage->serve(out.plan)) {
      out.outcome = stage->outcome();
      served = false;
    }
  }
  if (loaded) {
    out.report = make_report(deployment, stages.front()->state(), out.plan, sized, served);
  } else {
    out.report.total = deployment.device_total();
  }
  for (const auto& stage : stages) {
    out.stages.push_back(std::move(stage->state()));
  }
  return out;
}

}  // namespace oomcast::sglang
