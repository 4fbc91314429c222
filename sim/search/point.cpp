#include "sim/search/point.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "models/gpu.hpp"
#include "sim/report/csv.hpp"
#include "sim/search/axis.hpp"

namespace oomcast::search {
namespace {

constexpr std::array<std::string_view, 6> kWorkloadKnobs = {
    kScaleKnob, kRateKnob, kPromptKnob, kRequestsKnob, kClientsKnob, kContextKnob};
constexpr double kNanosPerSecond = 1e9;

std::int64_t count_of(const std::string& knob, const std::string& value) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < 1) {
    throw ConfigError(Problem{"command line", knob, value, "a whole number above 0", ""});
  }
  return number;
}

// A rate as a factor of the workload's own.
std::string scale_for(const std::string& rate, double own) {
  const auto wanted = parse_decimal(rate);
  const double value = wanted ? wanted->value() : 0;
  if (!(value > 0) || !(own > 0)) {
    throw ConfigError(Problem{"command line", kRateKnob, rate,
                              own > 0 ? "a number above 0" : "requests that arrive over time", ""});
  }
  return fmt::format("{:.9f}", value / own);
}

workloads::RecordedWorkload::Change change_of(const Settings& settings, double own_rate) {
  workloads::RecordedWorkload::Change change;
  for (const auto& [name, value] : settings) {
    if (name == kScaleKnob) {
      change.rate_scale = value;
    } else if (name == kRateKnob) {
      change.rate_scale = scale_for(value, own_rate);
    } else if (name == kPromptKnob) {
      change.prompt_scale = value;
    } else if (name == kRequestsKnob) {
      change.requests = count_of(name, value);
    } else if (name == kClientsKnob) {
      change.closed_loop = count_of(name, value);
    }
  }
  return change;
}

void take_outcome(const Outcome& outcome, PointResult& result) {
  result.kind = outcome.kind;
  result.phase = outcome.phase;
  result.rank = outcome.rank;
  result.leaf = outcome.leaf ? std::string(name_of(*outcome.leaf)) : "";
  result.short_by = outcome.short_by;
  result.message = outcome.message;
}

void take_report(const Plan& plan, PointResult& result) {
  const EngineReport& report = plan.report();
  result.kv_tokens = report.kv_tokens;
  result.kv_blocks = report.kv_blocks;
  result.max_concurrency = report.max_concurrency;
}

RankFigures figures(int rank, int alike, Bytes peak, Bytes total) {
  return {rank, alike, peak, total - peak};
}

double seconds(std::int64_t nanos) { return static_cast<double>(nanos) / kNanosPerSecond; }

ServingFigures serving_figures(const RunTotals& totals) {
  ServingFigures out;
  out.requests = totals.requests;
  out.finished = totals.finished;
  out.aborted = totals.aborted;
  out.preemptions = totals.preemptions;
  out.makespan = seconds(totals.makespan.count());
  out.goodput =
      out.makespan > 0 ? static_cast<double>(totals.output_tokens.count()) / out.makespan : 0;
  out.ttft_p50 = seconds(totals.ttft.quantile(0.5));
  out.ttft_p99 = seconds(totals.ttft.quantile(0.99));
  out.tpot_p50 = seconds(totals.tpot.quantile(0.5));
  out.tpot_p99 = seconds(totals.tpot.quantile(0.99));
  out.latency_p50 = seconds(totals.latency.quantile(0.5));
  out.latency_p99 = seconds(totals.latency.quantile(0.99));
  out.kv_peak = totals.kv_peak;
  out.kv_pool = totals.kv_pool;
  return out;
}

}  // namespace

bool is_workload_knob(std::string_view name) {
  return std::find(kWorkloadKnobs.begin(), kWorkloadKnobs.end(), name) != kWorkloadKnobs.end();
}

std::string canonical_knob(const launch::Launch& launch, std::string_view name) {
  if (name == kGpuKnob || is_workload_knob(name)) {
    return std::string(name);
  }
  return launch::canonical_flag(launch, name);
}

Bytes PointResult::peak() const {
  Bytes most;
  for (const RankFigures& one : ranks) {
    most = std::max(most, one.peak);
  }
  return most;
}

Bytes PointResult::headroom() const {
  Bytes least = ranks.empty() ? Bytes{} : ranks.front().headroom;
  for (const RankFigures& one : ranks) {
    least = std::min(least, one.headroom);
  }
  return least;
}

bool operator==(const PointResult& left, const PointResult& right) {
  return to_json(left) == to_json(right);
}

const launch::Launch& PointRunner::launch_with(const Settings& settings) {
  const bool alike =
      last_settings_ && settings.size() == last_settings_->size() &&
      std::equal(settings.begin(), settings.end(), last_settings_->begin(),
                 [](const auto& now, const auto& last) {
                   // Keys of one JSON flag may leave others behind.
                   return now.first == last.first && now.first.find('.') == std::string::npos;
                 });
  if (!alike) {
    last_launch_ = base_.deployment.common().launch;
  }
  // None while one may be refused.
  const Settings last = std::exchange(last_settings_, std::nullopt).value_or(Settings{});
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const auto& [name, value] = settings[i];
    const bool is_flag = name != kGpuKnob && !is_workload_knob(name);
    if (is_flag && (!alike || last[i].second != value)) {
      launch::set_flag(last_launch_, name, value);
    }
  }
  last_settings_ = settings;
  return last_launch_;
}

AnyDeployment PointRunner::resolve(const Settings& settings) {
  const EngineDeployment& base = base_.deployment.common();
  launch::Launch launch = launch_with(settings);
  const auto gpu = std::find_if(settings.begin(), settings.end(),
                                [](const auto& setting) { return setting.first == kGpuKnob; });
  return gpu != settings.end()
             ? resolve_again(base, std::move(launch), models::find_gpu(gpu->second))
             : resolve_again(base, std::move(launch));
}

PointResult PointRunner::run(const Settings& settings) {
  PointResult result;
  try {
    AnyDeployment deployment = resolve(settings);
    const EngineDeployment& common = deployment.common();
    result.gpus = common.tp * common.pp * common.dp;
    result.replicas = common.dp;
    if (base_.replays()) {
      serve(std::move(deployment), settings, result);
      return result;
    }
    Plan plan = start(std::move(deployment), &memo_);
    if (plan.outcome().kind == OutcomeKind::kStartupOom && plan.outcome().phase == "capture") {
      // Where memory ends while graphs are captured, what an earlier trial left in the allocator
      // counts, and figures alone are remembered of it.
      plan = start(resolve(settings));
    }
    take_outcome(plan.outcome(), result);
    take_report(plan, result);
    for (const RankState* rank : plan.ranks()) {
      result.ranks.push_back(figures(rank->first_rank, rank->ranks, rank->peaks.device().bytes,
                                     rank->memory.ledger().device_total()));
    }
  } catch (const ConfigError& error) {
    result.kind = OutcomeKind::kConfigRejected;
    result.message = to_string(error.problems().front());
  }
  return result;
}

std::unique_ptr<workloads::RequestStream> PointRunner::stream_for(const Plan& plan,
                                                                  const Settings& settings) const {
  if (!base_.worst_case) {
    return base_.workload->play(change_of(settings, base_.workload->own_rate()));
  }
  constexpr std::int64_t kMostRequests = 4096;
  constexpr std::int64_t kMostOutput = 128;
  std::int64_t length = plan.deployment().max_model_len.count();
  for (const auto& [name, value] : settings) {
    if (name == kContextKnob) {
      length = count_of(name, value);
    }
  }
  const std::int64_t output = std::clamp<std::int64_t>(length / 8, 1, kMostOutput);
  const std::int64_t requests =
      std::min(plan.report().max_running_requests.value_or(kMostRequests), kMostRequests);
  return workloads::make_synthetic(fmt::format("batch:requests={},input={},output={}", requests,
                                               std::max<std::int64_t>(1, length - output), output),
                                   1);
}

void PointRunner::serve(AnyDeployment deployment, const Settings& settings, PointResult& result) {
  const std::unique_ptr<StepTimeModel> times = base_.calibration && base_.calibration->step_time
                                                   ? make_measured(*base_.calibration->step_time)
                                                   : step_time_model(deployment);
  Plan plan = start(std::move(deployment));
  take_report(plan, result);
  const auto stream = stream_for(plan, settings);
  ReplayOptions options;
  options.stop = base_.stop;
  NoRequests sink;
  RunRecord record;
  replay(std::move(plan), *times, *stream, sink, options, record);
  take_outcome(record.outcome, result);
  for (const RankRecord& rank : record.ranks) {
    result.ranks.push_back(
        figures(rank.rank, rank.alike, rank.device_peak.bytes, rank.device_total));
  }
  result.serving = serving_figures(record.totals);
}

}  // namespace oomcast::search
