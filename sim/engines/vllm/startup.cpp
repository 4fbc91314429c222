#include "sim/engines/vllm/startup.hpp"

#include <algorithm>
#include <memory>

namespace oomcast::vllm {
namespace {

double concurrency(const Deployment& deployment, const KvLayout& layout, Blocks blocks) {
  return static_cast<double>(blocks.count()) /
         static_cast<double>(deployment.blocks_per_sequence(layout));
}

// What the engine says of a pool of so many blocks.
void report_blocks(const Deployment& deployment, const KvLayout& layout, Blocks blocks,
                   EngineReport& report) {
  report.kv_blocks = blocks.count();
  std::int64_t smallest_block = deployment.block_size.count();
  for (const KvGroupLayout& member : layout.groups) {
    smallest_block = std::min(smallest_block, member.group.block_size.count());
  }
  report.block_size = smallest_block;
  report.max_concurrency = concurrency(deployment, layout, blocks);
  const auto groups = static_cast<std::int64_t>(layout.groups.size());
  report.kv_tokens =
      deployment.rules.report_by_concurrency
          ? static_cast<std::int64_t>(*report.max_concurrency *
                                      static_cast<double>(deployment.max_model_len.count()))
          : blocks.count() / groups * smallest_block * deployment.dcp;
  report.max_running_requests = deployment.max_num_seqs;
}

EngineReport make_report(const Deployment& deployment, const std::vector<StageStartup*>& stages,
                         Blocks blocks) {
  EngineReport report;
  const StageState& first = stages.front()->state();
  report.total = deployment.device_total();
  report.weights = first.weights;
  report.available_kv = first.available_kv;
  report.activation_peak = first.activation_peak;
  for (StageStartup* stage : stages) {
    // Several workers log the same line; what is quoted of them is the lowest.
    report.available_kv = std::min(*report.available_kv, stage->state().available_kv);
    report.activation_peak = std::min(*report.activation_peak, stage->state().activation_peak);
  }
  if (deployment.rules.budget == Budget::kConsumed) {
    report.consumed = first.consumed;
  } else {
    report.non_torch = first.non_torch;
  }
  for (StageStartup* stage : stages) {
    if (const auto& needed = stage->state().kv_needed) {
      report.kv_needed = *needed;
    }
    if (const auto& longest = stage->state().longest_that_fits) {
      report.longest_that_fits = longest->count();
    }
    if (const auto& state_blocks = stage->state().state_blocks) {
      report.state_blocks = state_blocks->count();
    }
  }
  if (deployment.graph_estimate_applied) {
    report.cudagraph_estimate = first.graph_estimate;
  }
  if (blocks > Blocks{0}) {
    report_blocks(deployment, first.kv, blocks, report);
  }
  report.cudagraph = first.capture_drop;
  return report;
}

}  // namespace

Startup simulate_startup(const Deployment& deployment, StartupMemo* memo) {
  std::vector<std::unique_ptr<StageStartup>> stages;
  std::vector<StageStartup*> measured;
  Startup out;
  out.max_model_len = deployment.max_model_len;
  Blocks blocks;
  const auto run = [&] {
    for (int stage = 0; stage < deployment.pp; ++stage) {
      stages.push_back(std::make_unique<StageStartup>(deployment, stage, memo));
      if (!stages.back()->measure()) {
        out.outcome = stages.back()->outcome();
        return;
      }
      measured.push_back(stages.back().get());
    }
    // Every rank takes the smallest number of blocks that any of them can hold.
    for (StageStartup* stage : measured) {
      const StageState& state = stage->state();
      Bytes available = state.available_kv;
      const bool overridden = deployment.block_override.has_value();
      if (overridden && deployment.launch.at_least(0, 22)) {
        available = state.kv.block_bytes() * *deployment.block_override;
      }
      if (!stage->check_kv(available)) {
        out.outcome = stage->outcome();
        return;
      }
      if (deployment.fits_model_len) {
        out.max_model_len = std::min(out.max_model_len, stage->longest_that_fits(available));
      }
      const Blocks own{overridden ? *deployment.block_override
                                  : available / state.kv.block_bytes()};
      blocks = stage == measured.front() ? own : std::min(blocks, own);
    }
    if (out.max_model_len <= Tokens{0}) {
      measured.front()->cannot_fit_any();
      out.outcome = measured.front()->outcome();
      return;
    }
    for (StageStartup* stage : measured) {
      if (!stage->check_state_blocks(blocks) || !stage->serve(blocks)) {
        out.outcome = stage->outcome();
        return;
      }
    }
  };
  run();
  if (measured.size() == stages.size() && !measured.empty()) {
    Deployment running = deployment;
    running.max_model_len = out.max_model_len;
    out.report = make_report(running, measured, blocks);
  } else {
    out.report.total = deployment.device_total();
    // Memory that is given holds what it holds, whether the engine gets so far or not.
    const KvLayout& layout = stages.front()->state().kv;
    if (const auto& given = deployment.assumed.available_kv;
        given && layout.block_bytes() > Bytes{0}) {
      report_blocks(deployment, layout, Blocks{*given / layout.block_bytes()}, out.report);
    }
  }
  out.blocks = blocks;
  for (const auto& stage : stages) {
    out.stages.push_back(std::move(stage->state()));
  }
  return out;
}

}  // namespace oomcast::vllm
