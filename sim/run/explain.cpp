#include "sim/run/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "models/config_reader.hpp"
#include "sim/core/error.hpp"
#include "sim/logs/log_reader.hpp"
#include "sim/run/calibration_fit.hpp"
#include "sim/run/explain_cause.hpp"
#include "sim/run/explain_waterfall.hpp"

namespace oomcast {
namespace {

using logs::EngineLog;
using logs::EngineRun;
using logs::Figure;
using logs::Reading;

constexpr double kBytesOfGib = 1073741824.0;

OrderedJson gib(double bytes) { return std::round(bytes / kBytesOfGib * 1e6) / 1e6; }
OrderedJson gib(std::optional<double> bytes) { return bytes ? gib(*bytes) : OrderedJson(nullptr); }
OrderedJson gib(std::optional<Bytes> bytes) {
  return bytes ? gib(static_cast<double>(bytes->count())) : OrderedJson(nullptr);
}

OrderedJson figure_json(Figure figure, double value) {
  switch (logs::measure_of(figure)) {
    case logs::Measure::kBytes:
      return gib(value);
    case logs::Measure::kCount:
      return static_cast<std::int64_t>(std::llround(value));
    case logs::Measure::kRatio:
      break;
  }
  return std::round(value * 1e6) / 1e6;
}

void check_options(const ExplainOptions& options) {
  if (!options.launch_line.empty()) {
    launch::LaunchOptions versions;
    versions.engine_version = options.engine_version;
    launch::parse_launch(options.launch_line, versions);
  } else if (!options.engine_version.empty() && !parse_version(options.engine_version)) {
    throw ConfigError(Problem{"command line", "--engine-version", options.engine_version,
                              "a version such as 0.19.0", ""});
  }
  if (!options.model_config.empty()) {
    models::read_model_config(options.model_config);
  }
  Assumed::parse(options.assume);
}

// ---- prediction ---------------------------------------------------------------------------------

struct Prediction {
  std::optional<Plan> plan;
  std::string refused;  // why there is none
};

// Free memory that the simulated start measures first.
std::optional<Bytes> free_at_first_measurement(const Plan& plan) {
  for (const RankState* rank : plan.ranks()) {
    for (const PhaseRecord& phase : rank->phases) {
      if (phase.name == "communicators") {
        return plan.deployment().device_total() - phase.views.device_used;
      }
    }
  }
  return std::nullopt;
}

// What the log's first measurement lacks beyond this process' own memory is held by others.
std::optional<Bytes> held_by_others(const EngineRun& run, const Plan& plan) {
  constexpr Bytes kNoDoubt{std::int64_t{512} << 20};
  const Reading* free = run.nearest(Figure::kFreeAtStart, run.deciding_rank());
  const auto expected = free_at_first_measurement(plan);
  if (run.engine != launch::Engine::kVllm || free == nullptr || !expected) {
    return std::nullopt;
  }
  const Bytes missing = *expected - free->bytes();
  return missing > kNoDoubt ? std::optional(missing) : std::nullopt;
}

Prediction predict(const EngineRun& run, Identity& identity) {
  Prediction out;
  try {
    out.plan = start(resolve_input(identity.input));
    const bool told = identity.input.card.other_use > Bytes{0} || identity.input.card.free_at_start;
    if (const auto others = held_by_others(run, *out.plan); others && !told) {
      identity.notes.push_back(
          fmt::format("other processes hold about {:.2f} GiB: that much less is free at the start",
                      to_gib(*others)));
      identity.input.card.other_use = *others;
      out.plan = start(resolve_input(identity.input));
    }
  } catch (const ConfigError& error) {
    out.refused = to_string(error.problems().front());
  }
  return out;
}

// ---- what to change -----------------------------------------------------------------------------

// The share of memory lowered by what was missing, if the start then still fits.
std::optional<Fix> smaller_share(const EngineDeployment& deployment, Bytes missing) {
  for (const Knob& knob : deployment.knobs()) {
    if (knob.kind != Knob::Kind::kFraction) {
      continue;
    }
    const double share = to_gib(missing) / to_gib(deployment.device_total());
    const double value = std::floor((knob.now - share) * 100) / 100;
    if (value <= 0 || value >= knob.now) {
      return std::nullopt;
    }
    try {
      launch::Launch changed = deployment.launch;
      const std::string text = fmt::format("{:.2f}", value);
      launch::set_flag(changed, knob.flag, text);
      const Plan plan = start(resolve_again(deployment, std::move(changed)));
      if (plan.outcome().fits()) {
        return Fix{fmt::format("--{} {}", knob.flag, text),
                   Bytes{std::llround((knob.now - value) *
                                      static_cast<double>(deployment.device_total().count()))}};
      }
    } catch (const ConfigError&) {
      // The engine refuses this value; it is no fix.
    }
    return std::nullopt;
  }
  return std::nullopt;
}

// The start with the log's own figures: what it measured beyond the prediction added.
std::optional<Plan> as_measured(const EngineLog& log, const EngineRun& run,
                                const Identity& identity) {
  try {
    const std::vector<CalibrationSample> samples = {{log.name, &run, identity.input}};
    AnyDeployment deployment = resolve_input(identity.input);
    apply(fit_calibration(samples).calibration, deployment.common());
    return make_plan(std::move(deployment));
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

std::vector<Fix> fixes_for(const EngineLog& log, const EngineRun& run, const Cause& cause,
                           const Identity& identity, const Plan& predicted) {
  const std::optional<Plan> measured = as_measured(log, run, identity);
  if (measured && !measured->outcome().fits()) {
    return measured->outcome().fixes;
  }
  if (!predicted.outcome().fits()) {
    return make_plan(resolve_input(identity.input)).outcome().fixes;
  }
  const Plan& plan = measured ? *measured : predicted;
  // The start alone fits: what ran out lies beside the pool.
  std::vector<Fix> fixes;
  if (cause.fragmented) {
    fixes.push_back({"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                     cause.failure->oom->unallocated.value_or(Bytes{0})});
  }
  if (cause.short_by && cause.failure->oom) {
    if (const auto fix = smaller_share(plan.deployment(), *cause.short_by)) {
      fixes.push_back(*fix);
    }
  }
  return fixes;
}

// ---- JSON ---------------------------------------------------------------------------------------

OrderedJson identified_json(const Identified& what) {
  OrderedJson json;
  json["value"] = what.value.empty() ? OrderedJson(nullptr) : OrderedJson(what.value);
  json["from"] = what.value.empty() ? OrderedJson(nullptr) : OrderedJson(what.from);
  return json;
}

OrderedJson row_json(const WaterfallRow& row) {
  OrderedJson json;
  json["name"] = row.name;
  json["class"] = row.memory_class.empty() ? OrderedJson(nullptr) : OrderedJson(row.memory_class);
  json["logged_gib"] = gib(row.logged);
  json["predicted_gib"] = gib(row.predicted);
  json["difference_gib"] =
      row.logged && row.predicted ? gib(*row.predicted - *row.logged) : OrderedJson(nullptr);
  return json;
}

OrderedJson waterfall_json(const Waterfall& waterfall) {
  OrderedJson json;
  json["rows"] = OrderedJson::array();
  for (const WaterfallRow& row : waterfall.rows) {
    json["rows"].push_back(row_json(row));
  }
  json["left"] = row_json(waterfall.left);
  json["pool"] = row_json(waterfall.pool);
  json["unexplained_gib"] = gib(waterfall.unexplained);
  json["rounding_gib"] = gib(waterfall.rounding);
  json["filled"] = waterfall.filled;
  return json;
}

OrderedJson figures_json(const EngineRun& run) {
  OrderedJson json = OrderedJson::array();
  for (const Reading& reading : run.readings) {
    OrderedJson entry;
    entry["figure"] = logs::key_of(reading.figure);
    entry["value"] = figure_json(reading.figure, reading.value);
    entry["rank"] = run.ranks[reading.rank];
    entry["line"] = reading.line;
    entry["derived"] = reading.derived;
    json.push_back(std::move(entry));
  }
  return json;
}

OrderedJson logged_json(const EngineRun& run) {
  OrderedJson json = OrderedJson::object();
  for (std::size_t i = 0; i < logs::kFigureCount; ++i) {
    const auto figure = static_cast<Figure>(i);
    if (const Reading* reading = run.nearest(figure, run.deciding_rank())) {
      json[logs::key_of(figure)] = figure_json(figure, reading->value);
    }
  }
  return json;
}

OrderedJson predicted_json(const EngineReport& report) {
  OrderedJson json = OrderedJson::object();
  for (std::size_t i = 0; i < logs::kFigureCount; ++i) {
    const auto figure = static_cast<Figure>(i);
    if (const auto value = predicted_figure(report, figure)) {
      json[logs::key_of(figure)] = figure_json(figure, *value);
    }
  }
  return json;
}

OrderedJson oom_json(const logs::TorchOom& oom) {
  OrderedJson json;
  json["tried_alloc_mib"] = std::round(to_mib(*oom.tried) * 1e4) / 1e4;
  json["gpu"] = oom.gpu ? OrderedJson(*oom.gpu) : OrderedJson(nullptr);
  json["total_gib"] = gib(oom.total);
  json["free_gib"] = gib(oom.free);
  json["process_gib"] = gib(oom.process);
  json["allowed_gib"] = gib(oom.allowed);
  json["allocated_gib"] = gib(oom.allocated);
  json["private_pools_gib"] = gib(oom.private_pools);
  json["reserved_unallocated_gib"] = gib(oom.unallocated);
  json["outside_torch_gib"] = gib(oom.outside_torch());
  json["other_processes_gib"] = gib(oom.other_processes());
  return json;
}

OrderedJson failures_json(const EngineRun& run) {
  OrderedJson json = OrderedJson::array();
  for (const logs::Failure& failure : run.failures) {
    OrderedJson entry;
    entry["kind"] = logs::name_of(failure.kind);
    entry["phase"] = logs::name_of(failure.phase);
    entry["rank"] = run.ranks[failure.rank];
    entry["line"] = failure.line;
    entry["message"] = failure.message;
    entry["repeats"] = failure.repeats;
    json.push_back(std::move(entry));
  }
  return json;
}

OrderedJson outcome_json(const EngineRun& run, const std::optional<Cause>& cause,
                         const std::vector<Fix>& fixes) {
  OrderedJson json;
  json["fits"] = !cause.has_value();
  const bool served = run.phase() && *run.phase() >= logs::Phase::kReady;
  json["kind"] = cause    ? OrderedJson(logs::name_of(cause->failure->kind))
                 : served ? OrderedJson("served")
                          : OrderedJson(nullptr);  // the log ends before either
  json["phase"] = cause ? OrderedJson(logs::name_of(cause->failure->phase)) : OrderedJson(nullptr);
  json["rank"] = cause ? OrderedJson(run.ranks[cause->failure->rank]) : OrderedJson(nullptr);
  json["class"] = cause && cause->leaf ? OrderedJson(name_of(*cause->leaf)) : OrderedJson(nullptr);
  json["short_by_gib"] = cause ? gib(cause->short_by) : OrderedJson(nullptr);
  json["other_processes_gib"] = cause ? gib(cause->others) : OrderedJson(nullptr);
  json["reason"] = cause ? OrderedJson(cause->reason) : OrderedJson(nullptr);
  json["line"] = cause ? OrderedJson(cause->failure->line) : OrderedJson(nullptr);
  json["message"] = cause ? OrderedJson(cause->failure->message) : OrderedJson(nullptr);
  json["oom"] =
      cause && cause->failure->oom ? oom_json(*cause->failure->oom) : OrderedJson(nullptr);
  json["fixes"] = OrderedJson::array();
  for (const Fix& fix : fixes) {
    json["fixes"].push_back({{"change", fix.change}, {"frees_gib", gib(std::optional(fix.frees))}});
  }
  json["failures"] = failures_json(run);
  json["further_failures"] = run.further_failures;
  return json;
}

OrderedJson phases_json(const EngineRun& run) {
  OrderedJson json = OrderedJson::array();
  for (std::size_t i = 0; i < logs::kPhaseCount; ++i) {
    if (run.phase_lines[i] > 0) {
      json.push_back(
          {{"phase", logs::name_of(static_cast<logs::Phase>(i))}, {"line", run.phase_lines[i]}});
    }
  }
  return json;
}

OrderedJson run_json(const EngineLog& log, const EngineRun& run, const ExplainOptions& options) {
  Identity identity = identify(run, options);
  Prediction prediction;
  if (identity.missing.empty()) {
    prediction = predict(run, identity);
  } else {
    prediction.refused = fmt::format("missing: {}", fmt::join(identity.missing, "; "));
  }
  const Plan* plan = prediction.plan ? &*prediction.plan : nullptr;
  const std::optional<Cause> cause = find_cause(run);
  std::vector<Fix> fixes;
  if (cause && plan != nullptr) {
    fixes = fixes_for(log, run, *cause, identity, *plan);
  }
  OrderedJson json;
  json["engine"] =
      identity.engine ? OrderedJson(launch::to_string(*identity.engine)) : OrderedJson(nullptr);
  json["engine_version"] = identified_json(identity.version);
  json["model"] = identified_json(identity.model);
  json["gpu"] = identified_json(identity.gpu);
  json["launch"] = identified_json(identity.launch_line);
  json["stream"] = run.stream;
  json["first_line"] = run.first_line;
  json["last_line"] = run.last_line;
  json["ranks"] = run.ranks;
  json["deciding_rank"] = run.ranks[run.deciding_rank()];
  json["phases"] = phases_json(run);
  json["missing"] = identity.missing;
  json["logged"] = logged_json(run);
  json["predicted"] = plan != nullptr ? predicted_json(plan->report()) : OrderedJson(nullptr);
  json["not_predicted"] = plan != nullptr ? OrderedJson(nullptr) : OrderedJson(prediction.refused);
  json["predicted_outcome"] =
      plan != nullptr ? OrderedJson(name_of(plan->outcome().kind)) : OrderedJson(nullptr);
  json["figures"] = figures_json(run);
  json["waterfall"] =
      identity.engine
          ? waterfall_json(make_waterfall(run, run.deciding_rank(), *identity.engine, plan))
          : OrderedJson(nullptr);
  json["outcome"] = outcome_json(run, cause, fixes);
  json["notes"] = identity.notes;
  if (plan != nullptr) {
    for (const std::string& warning : plan->deployment().warnings) {
      json["notes"].push_back(warning);
    }
  }
  return json;
}

std::vector<std::string> notes_of(const EngineLog& log) {
  std::vector<std::string> notes;
  if (log.runs.size() > 1) {
    notes.push_back(fmt::format("{} starts of engines in one log, each by itself",
                                log.runs.size() + static_cast<std::size_t>(log.further_runs)));
  }
  if (log.further_runs > 0) {
    notes.push_back(fmt::format("the last {} starts are not read", log.further_runs));
  }
  if (log.from_notes) {
    notes.emplace_back("a short text: figures that no engine's line gives are read as notes");
  }
  if (log.unreadable_bytes > 0) {
    notes.push_back(fmt::format("{} bytes are no text; passed over", log.unreadable_bytes));
  }
  if (log.cut_lines > 0) {
    notes.push_back(fmt::format("{} lines are longer than {} KiB; cut there", log.cut_lines,
                                logs::kMostLineBytes / 1024));
  }
  if (log.odd_numbers > 0) {
    notes.push_back(fmt::format("{} numbers cannot be; passed over", log.odd_numbers));
  }
  if (!log.ended_early.empty()) {
    notes.push_back("read up to there only: " + log.ended_early);
  }
  return notes;
}

}  // namespace

OrderedJson explain_json(const EngineLog& log, const ExplainOptions& options) {
  check_options(options);
  OrderedJson json;
  json["schema"] = "oomcast.explain/1";
  json["log"] = log.name;
  json["lines"] = log.lines;
  json["notes"] = notes_of(log);
  json["engines"] = OrderedJson::array();
  for (const EngineRun& run : log.runs) {
    json["engines"].push_back(run_json(log, run, options));
  }
  return json;
}

bool shows_failure(const OrderedJson& explained) {
  const OrderedJson& engines = explained.at("engines");
  return std::any_of(engines.begin(), engines.end(), [](const OrderedJson& engine) {
    return !engine.at("outcome").at("fits").get<bool>();
  });
}

}  // namespace oomcast
