#include "sim/run/explain_waterfall.hpp"

#include <cmath>

#include "sim/logs/python_repr.hpp"

namespace oomcast {
namespace {

using logs::EngineRun;
using logs::Figure;
using logs::Reading;

std::optional<double> number(const std::optional<Bytes>& bytes) {
  return bytes ? std::optional(static_cast<double>(bytes->count())) : std::nullopt;
}
std::optional<double> number(const std::optional<std::int64_t>& count) {
  return count ? std::optional(static_cast<double>(*count)) : std::nullopt;
}

std::optional<double> negative(std::optional<double> value) {
  return value ? std::optional(-*value) : std::nullopt;
}

std::optional<double> minus(std::optional<double> left, std::optional<double> right) {
  return left && right ? std::optional(*left - *right) : std::nullopt;
}

class Builder {
 public:
  Builder(const EngineRun& run, std::size_t rank, const Plan* plan)
      : run_(run), rank_(rank), report_(plan == nullptr ? nullptr : &plan->report()) {}

  [[nodiscard]] const Reading* logged(Figure figure) const { return run_.nearest(figure, rank_); }
  [[nodiscard]] std::optional<double> logged_value(Figure figure) const {
    const Reading* reading = logged(figure);
    return reading == nullptr ? std::nullopt : std::optional(reading->value);
  }
  [[nodiscard]] std::optional<double> predicted(Figure figure) const {
    return report_ == nullptr ? std::nullopt : predicted_figure(*report_, figure);
  }

  void add(std::string name, std::string memory_class, std::optional<double> of_log,
           std::optional<double> of_plan, double half_step) {
    out_.rows.push_back({std::move(name), std::move(memory_class), of_log, of_plan, half_step});
  }
  void level(std::string name, Figure figure) {
    const Reading* reading = logged(figure);
    add(std::move(name), "", logged_value(figure), predicted(figure),
        reading == nullptr ? 0 : reading->half_step);
  }
  void subtract(std::string name, std::string memory_class, Figure figure) {
    const Reading* reading = logged(figure);
    add(std::move(name), std::move(memory_class), negative(logged_value(figure)),
        negative(predicted(figure)), reading == nullptr ? 0 : reading->half_step);
  }
  // A row that both or either may have; left out where neither does.
  void subtract_if_there(std::string name, std::string memory_class, Figure figure) {
    if (logged(figure) != nullptr || predicted(figure)) {
      subtract(std::move(name), std::move(memory_class), figure);
    }
  }

  Waterfall finish(Figure pool, std::optional<double> logged_pool,
                   std::optional<double> predicted_pool) {
    const Reading* reading = logged(pool);
    out_.pool = {"KV cache, as the engine says", "kv", logged_pool, predicted_pool,
                 reading == nullptr ? 0 : reading->half_step};
    out_.left = {"left for the KV cache", "", 0.0, 0.0, 0};
    for (const WaterfallRow& row : out_.rows) {
      const std::optional<double> best = row.logged ? row.logged : row.predicted;
      if (!row.logged && row.predicted) {
        out_.filled.push_back(row.name);
      }
      out_.left.logged =
          best && out_.left.logged ? std::optional(*out_.left.logged + *best) : std::nullopt;
      out_.left.predicted = row.predicted && out_.left.predicted
                                ? std::optional(*out_.left.predicted + *row.predicted)
                                : std::nullopt;
      out_.left.half_step += row.half_step;
    }
    if (out_.filled.size() == out_.rows.size()) {
      out_.left.logged = std::nullopt;  // nothing of it was logged
    }
    out_.unexplained = minus(logged_pool, out_.left.logged);
    out_.rounding = out_.left.half_step + out_.pool.half_step;
    return std::move(out_);
  }

 private:
  const EngineRun& run_;
  std::size_t rank_;
  const EngineReport* report_;
  Waterfall out_;
};

// total x (1 - utilization) stays out of the budget.
void vllm_budget(Builder& build, const Plan* plan) {
  const auto total = build.logged_value(Figure::kTotal);
  const Reading* requested = build.logged(Figure::kRequested);
  std::optional<double> of_plan;
  double share = 0;
  if (plan != nullptr && plan->as<Plan::Vllm>() != nullptr) {
    share = plan->as<Plan::Vllm>()->deployment.gpu_memory_utilization;
    of_plan = -static_cast<double>(plan->deployment().device_total().count()) * (1 - share);
  }
  std::optional<double> of_log =
      requested == nullptr ? std::nullopt : minus(requested->value, total);
  build.level("card", Figure::kTotal);
  build.add("outside the budget (1 - gpu_memory_utilization)", "", of_log, of_plan,
            requested == nullptr ? 0 : requested->half_step);
}

Waterfall vllm_waterfall(const EngineRun& run, std::size_t rank, const Plan* plan) {
  Builder build(run, rank, plan);
  vllm_budget(build, plan);
  const bool consumed =
      build.logged(Figure::kConsumed) != nullptr || build.predicted(Figure::kConsumed);
  if (consumed) {
    build.subtract("weights and non-torch (consumed)", "model", Figure::kConsumed);
    build.subtract("peak activation and graph estimate", "runtime", Figure::kActivationPeak);
  } else {
    build.subtract("weights", "model", Figure::kWeights);
    build.subtract("peak activation", "runtime", Figure::kActivationPeak);
    build.subtract("non-torch", "system", Figure::kNonTorch);
    // Estimated and not subtracted in 0.18 and 0.19.
    const auto version = parse_version(run.text(logs::Text::kVersion).value);
    const Version applied_since{{0, 20, 0}};
    if (build.predicted(Figure::kGraphEstimate) ||
        (plan == nullptr && version && *version >= applied_since)) {
      build.subtract_if_there("graph estimate", "graph", Figure::kGraphEstimate);
    }
  }
  return build.finish(Figure::kAvailableKv, build.logged_value(Figure::kAvailableKv),
                      build.predicted(Figure::kAvailableKv));
}

// SGLang's mem_fraction_static, as its arguments print it.
std::optional<double> static_share(const EngineRun& run) {
  const OrderedJson arguments = logs::parse_python_settings(run.text(logs::Text::kArguments).value);
  const auto found = arguments.find("mem_fraction_static");
  return found != arguments.end() && found->is_number() ? std::optional(found->get<double>())
                                                        : std::nullopt;
}

Waterfall sglang_waterfall(const EngineRun& run, std::size_t rank, const Plan* plan) {
  Builder build(run, rank, plan);
  const auto after_load = build.predicted(Figure::kFreeAfterLoad);
  const auto weights = build.predicted(Figure::kWeights);
  const auto state = plan == nullptr ? std::nullopt : number(plan->report().state_pool);
  const auto pools = build.predicted(Figure::kAvailableKv);
  std::optional<double> kept;
  if (after_load && weights && pools) {
    kept = *pools + state.value_or(0) - *after_load;
  }
  const Reading* free = build.logged(Figure::kFreeAtStart);
  build.add("free before loading", "", build.logged_value(Figure::kFreeAtStart),
            build.predicted(Figure::kFreeAtStart), free == nullptr ? 0 : free->half_step);
  build.subtract("weights", "model", Figure::kWeights);
  build.subtract_if_there("draft weights", "model", Figure::kDraftWeights);
  const auto share = static_share(run);
  build.add("kept for all else (1 - mem_fraction_static)", "",
            share && free != nullptr ? std::optional(-free->value * (1 - *share)) : std::nullopt,
            kept, 0);
  build.subtract_if_there("multimodal reserve", "runtime", Figure::kMultimodalReserve);
  build.subtract_if_there("recurrent state", "kv", Figure::kStatePool);
  build.subtract_if_there("state of speculated tokens", "kv", Figure::kIntermediateState);
  return build.finish(Figure::kAvailableKv, build.logged_value(Figure::kAvailableKv), pools);
}

// (total - peak + the dry run's KV) x fraction.
Waterfall trtllm_waterfall(const EngineRun& run, std::size_t rank, const Plan* plan) {
  Builder build(run, rank, plan);
  build.level("card", Figure::kTotal);
  build.subtract_if_there("peak of the dry run", "runtime", Figure::kPeak);
  const Reading* temporary = build.logged(Figure::kTemporaryKv);
  if (temporary != nullptr) {
    build.add("KV of the dry run, returned", "kv", temporary->value, std::nullopt,
              temporary->half_step);
  }
  const auto share = build.logged_value(Figure::kUtilization);
  const auto total = build.logged_value(Figure::kTotal);
  const auto peak = build.logged_value(Figure::kPeak);
  if (share && total && peak) {
    const double free = *total - *peak + (temporary == nullptr ? 0 : temporary->value);
    build.add("kept free (1 - free_gpu_memory_fraction)", "", -free * (1 - *share), std::nullopt,
              0);
  }
  build.subtract_if_there("attention workspace reserve", "workspace", Figure::kSchedulerReserve);
  return build.finish(Figure::kAvailableKv, build.logged_value(Figure::kAvailableKv),
                      build.predicted(Figure::kAvailableKv));
}

}  // namespace

Waterfall make_waterfall(const EngineRun& run, std::size_t rank, launch::Engine engine,
                         const Plan* plan) {
  switch (engine) {
    case launch::Engine::kSglang:
      return sglang_waterfall(run, rank, plan);
    case launch::Engine::kTrtllm:
      return trtllm_waterfall(run, rank, plan);
    case launch::Engine::kVllm:
      break;
  }
  return vllm_waterfall(run, rank, plan);
}

std::optional<double> predicted_figure(const EngineReport& report, Figure figure) {
  switch (figure) {
    case Figure::kTotal:
      return number(report.total);
    case Figure::kWeights:
      return number(report.weights);
    case Figure::kDraftWeights:
      return number(report.draft_weights);
    case Figure::kActivationPeak:
      return number(report.activation_peak);
    case Figure::kNonTorch:
      return number(report.non_torch);
    case Figure::kConsumed:
      return number(report.consumed);
    case Figure::kGraphs:
      return number(report.cudagraph);
    case Figure::kGraphEstimate:
      return number(report.cudagraph_estimate);
    case Figure::kAvailableKv:
      return number(report.available_kv);
    case Figure::kKvNeeded:
      return number(report.kv_needed);
    case Figure::kFreeAtStart:  // SGLang calls that weights which is gone after loading
      return report.available_after_load && report.weights
                 ? number(*report.available_after_load + *report.weights)
                 : std::nullopt;
    case Figure::kFreeAfterLoad:
      return number(report.available_after_load);
    case Figure::kFreeAfterPool:
      return number(report.available_after_pool);
    case Figure::kFreeWhenReady:
      return number(report.available_at_end);
    case Figure::kKvTokens:
      return number(report.kv_tokens);
    case Figure::kKvBlocks:
      return number(report.kv_blocks);
    case Figure::kBlockSize:
      return number(report.block_size);
    case Figure::kMaxRunning:
      return number(report.max_running_requests);
    case Figure::kSwaTokens:
      return number(report.window_tokens);
    case Figure::kStatePool:
      return number(report.state_pool);
    case Figure::kStateSlots:
      return number(report.state_slots);
    case Figure::kStateBlocks:
      return number(report.state_blocks);
    case Figure::kEstimatedMaxModelLen:
      return number(report.longest_that_fits);
    case Figure::kMaxConcurrency:
      return report.max_concurrency;
    default:
      return std::nullopt;
  }
}

}  // namespace oomcast
