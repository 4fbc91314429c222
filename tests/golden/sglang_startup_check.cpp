#include "tests/golden/sglang_startup_check.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "models/gpu.hpp"
#include "sim/engines/sglang/startup.hpp"
#include "sim/engines/sglang/step_peaks.hpp"

namespace oomcast::golden {
namespace {

constexpr double kMib = 1048576.0;
constexpr double kGib = 1024 * kMib;

std::string launch_line(const Json& recorded) {
  std::string line = "python -m sglang.launch_server --model-path model --load-format dummy";
  for (const Json& word : recorded.at("flags")) {
    line += " '" + word.get<std::string>() + "'";
  }
  return line;
}

sglang::Deployment deployment_of(const Json& recorded, const models::ModelSpec& model) {
  launch::LaunchOptions options;
  options.engine_version = recorded.at("version").get<std::string>();
  models::GpuSpec gpu = models::find_gpu(recorded.at("gpu").get<std::string>());
  gpu.context_bytes = Bytes{0};
  gpu.nvml_total = kMiB * recorded.at("smi_mib").get<std::int64_t>();
  CardState card;
  const auto total = recorded.at("total_bytes").get<std::int64_t>();
  if (total <= 0 || total > allocator::kMaxDeviceBytes.count()) {
    throw ConfigError(
        Problem{"recording", "total_bytes", std::to_string(total), "the bytes of a card", ""});
  }
  card.total = Bytes{total};
  card.other_use = Bytes{recorded.at("base_used_bytes").get<std::int64_t>()};
  Assumed assumed;
  assumed.communicators = Bytes{0};  // collectives do nothing there
  sglang::Deployment deployment =
      sglang::resolve(launch::parse_launch(launch_line(recorded), options),
                      std::make_shared<models::ModelSpec>(model), gpu, card, assumed);
  deployment.graph_costs = {};
  deployment.rules.first_capture_modules = Bytes{0};
  deployment.rules.load_modules = Bytes{0};
  return deployment;
}

bool starts_with(const Json& phase, std::string_view text) {
  return phase.at("log").get<std::string>().starts_with(text);
}

class Comparison {
 public:
  explicit Comparison(const Json& recorded) : recorded_(recorded) {}

  std::vector<std::string> run(const sglang::Deployment& deployment, const sglang::Startup& own) {
    settings(deployment);
    const sglang::StageState& stage = own.stages.front();
    near("weights", reported("weight_load_mem_usage") * kGib, bytes(stage.weights), 0.001,
         4 * kMib);
    near("tokens (own)", reported("max_total_num_tokens"), count(own.report.kv_tokens), 0.003, 0);
    near("window tokens (own)", reported("swa_max_total_num_tokens"),
         count(own.report.window_tokens), 0.003, 0);
    near("state slots (own)", reported("max_mamba_cache_size"), count(own.report.state_slots),
         0.003, 1);
    phases(stage);
    graphs(stage);
    return std::move(complaints_);
  }

  std::vector<std::string> run_fed(const sglang::Startup& fed) {
    exact("max_total_num_tokens", fed.report.kv_tokens);
    exact("swa_max_total_num_tokens", fed.report.window_tokens);
    exact("max_mamba_cache_size", fed.report.state_slots);
    exact("max_running_requests", fed.report.max_running_requests);
    const double kv = reported("k_gib") + reported("v_gib");
    const double pool = std::isnan(reported("kv_gib")) ? kv : reported("kv_gib");
    near("KV pool", pool * kGib, bytes(fed.report.available_kv.value_or(Bytes{0})), 0.001,
         0.011 * kGib);
    near("state pool", (reported("conv_state_gib") + reported("ssm_state_gib")) * kGib,
         bytes(fed.report.state_pool.value_or(Bytes{0})), 0.001, 0.011 * kGib);
    return std::move(complaints_);
  }

 private:
  static double bytes(Bytes value) { return static_cast<double>(value.count()); }
  static double count(const std::optional<std::int64_t>& value) {
    return value ? static_cast<double>(*value) : 0;
  }

  [[nodiscard]] double reported(const char* field) const {
    const Json& report = recorded_.at("engine_report");
    return report.contains(field) && report.at(field).is_number() ? report.at(field).get<double>()
                                                                  : std::nan("");
  }

  void complain(const std::string& field, const std::string& expected, const std::string& got) {
    complaints_.push_back(fmt::format("{} expected {} got {}", field, expected, got));
  }

  void near(const std::string& field, double expected, double got, double share, double absolute) {
    if (!std::isnan(expected) &&
        std::abs(got - expected) > std::max(absolute, share * std::abs(expected))) {
      complain(field, fmt::format("{:.0f}", expected), fmt::format("{:.0f}", got));
    }
  }

  void exact(const char* field, const std::optional<std::int64_t>& got) {
    const double expected = reported(field);
    if (!std::isnan(expected) && (!got || static_cast<double>(*got) != expected)) {
      complain(field, fmt::format("{:.0f}", expected),
               got ? std::to_string(*got) : std::string("nothing"));
    }
  }

  void settings(const sglang::Deployment& deployment) {
    const Json& resolved = recorded_.at("resolved");
    const auto check = [&](const char* field, double got) {
      if (resolved.contains(field) && resolved.at(field).is_number() &&
          std::abs(resolved.at(field).get<double>() - got) > 1e-9) {
        complain(field, resolved.at(field).dump(), fmt::format("{}", got));
      }
    };
    check("mem_fraction_static", deployment.mem_fraction);
    check("chunked_prefill_size", static_cast<double>(deployment.chunk));
    check("page_size", static_cast<double>(deployment.page_size.count()));
    check("attn_tp_size", deployment.attention_tp());
    check("max_prefill_tokens", static_cast<double>(deployment.max_prefill_tokens.count()));
    const Json backends = recorded_.at("engine_report").value("attention_backends", Json());
    if (backends.is_array() && backends.size() == 2) {
      if (backends[0] != Json(deployment.prefill_backend)) {
        complain("attention backend", backends[0].dump(), deployment.prefill_backend);
      }
    }
  }

  // Memory of the device when the line at the end of each of our phases was last printed: a draft
  // has lines of its own.
  void phases(const sglang::StageState& stage) {
    static const std::map<std::string, std::string> kLines = {
        {"Memory baseline taken", "communicators"},
        {"Load weight end", "load"},
        {"Memory pool end", "kv"},
        {"max_total_num_tokens=", "ready"}};
    for (const auto& [line, name] : kLines) {
      std::optional<double> expected;
      for (const Json& phase : recorded_.at("phases")) {
        const bool baseline = name == "communicators";
        if (starts_with(phase, line) && phase.contains("driver_used") && !(baseline && expected)) {
          expected = phase.at("driver_used").get<double>();
        }
      }
      for (const PhaseRecord& mine : stage.phases) {
        if (mine.name == name && expected) {
          near("phase " + name, *expected, bytes(mine.views.device_used), 0.002, 8 * kMib);
        }
      }
    }
  }

  static std::string kind_of(const Json& graph) {
    const std::string runner = graph.value("runner", "");
    return runner == "EAGLEDraftCudaGraphRunner"         ? "draft"
           : runner == "EAGLEDraftExtendCudaGraphRunner" ? "draft_extend"
                                                         : graph.at("kind").get<std::string>();
  }

  void graphs(const sglang::StageState& stage) {
    std::map<std::string, double, std::less<>> expected;
    std::map<std::string, double, std::less<>> got;
    std::map<std::string, std::vector<std::int64_t>, std::less<>> sizes;
    std::map<std::string, std::vector<std::int64_t>, std::less<>> own_sizes;
    for (const Json& graph : recorded_.value("graphs", Json::array())) {
      const std::string kind = kind_of(graph);
      expected[kind] += graph.at("pool_growth_bytes").get<double>();
      sizes[kind].push_back(graph.at("size").get<std::int64_t>());
    }
    for (const CapturedGraph& graph : stage.graphs) {
      got[std::string(graph.mode)] += bytes(graph.pool_growth);
      own_sizes[std::string(graph.mode)].push_back(graph.size);
    }
    for (const auto& [kind, growth] : expected) {
      near("pool growth of " + kind + " graphs", growth, got[kind], 0.05, 2 * kMib);
      if (sizes[kind] != own_sizes[kind]) {
        complain(kind + " graphs", fmt::format("{} sizes", sizes[kind].size()),
                 fmt::format("{} sizes", own_sizes[kind].size()));
      }
    }
    for (const auto& [kind, growth] : got) {
      if (expected.find(kind) == expected.end()) {
        complain(kind + " graphs", "none", fmt::format("{:.0f} bytes", growth));
      }
    }
  }

  const Json& recorded_;
  std::vector<std::string> complaints_;
};

// Free memory when the pools were sized: after the last line before they appear.
std::optional<Bytes> free_at_sizing(const Json& recorded) {
  std::optional<Bytes> free;
  for (const Json& phase : recorded.at("phases")) {
    const auto log = phase.at("log").get<std::string>();
    if (log.find("Cache is allocated") != std::string::npos) {
      break;
    }
    if (phase.contains("driver_used")) {
      free = Bytes{recorded.at("total_bytes").get<std::int64_t>() -
                   phase.at("driver_used").get<std::int64_t>()};
    }
  }
  return free;
}

// What of the recorded free memory our own run would see at sizing: rope tables grow in between.
Bytes fed_free(const Json& recorded, const sglang::StageState& own) {
  const Bytes recorded_free = *free_at_sizing(recorded);
  for (const Json& phase : recorded.at("phases")) {
    const auto log = phase.at("log").get<std::string>();
    if (log.starts_with("Use sliding window") || log.starts_with("Reserving") ||
        log.starts_with("max_running_requests is capped")) {
      return recorded_free;  // printed after sizing
    }
  }
  return recorded_free + own.free.after - own.after_drafts;
}

// One workload. What a step leaves, the logits under overlap above all, stands below the next one.
void check_workload(const Json& workload, const sglang::StepPeaks& peaks, PeakPoints& points) {
  const bool greedy = workload.at("sampling").value("temperature", 1.0) == 0.0;
  double base = 0;
  StepLoad before;
  for (const Json& step : workload.at("steps")) {
    const StepLoad load{Tokens{step.at("tokens").get<std::int64_t>()},
                        step.at("requests").get<std::int64_t>(), step.at("mode") == "decode"};
    const double expected = base + step.at("peak_bytes").get<double>();
    base += step.at("left_bytes").get<double>();
    Bytes got;
    Bytes logits;
    const StepSizes sizes = peaks.at(load, before);
    before = load;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      got += sizes[i];
      logits += kStepLeaves[i] == Leaf::kRuntimeLogits ? sizes[i] : Bytes{0};
    }
    if (greedy && logits == got) {
      continue;
    }
    ++points.steps;
    if (std::abs(static_cast<double>(got.count()) - expected) <=
        std::max(8 * kMib, 0.02 * expected)) {
      ++points.steps_within;
    } else {
      points.off.push_back(
          fmt::format("{}: {} of {} tokens, {} requests expected {:.1f} MiB got {:.1f}",
                      workload.at("workload").get<std::string>(),
                      step.at("mode").get<std::string>(), load.tokens.count(), load.rows,
                      expected / kMib, static_cast<double>(got.count()) / kMib));
    }
  }
}

}  // namespace

PeakPoints check_sglang_steps(const Json& recorded, const models::ModelSpec& model) {
  PeakPoints points;
  if (!recorded.contains("steps")) {
    return points;
  }
  const sglang::Deployment deployment = deployment_of(recorded, model);
  const Json report = recorded.value("engine_report", Json::object());
  const sglang::StepPeaks peaks(deployment, 0,
                                Tokens{report.value("max_total_num_tokens", std::int64_t{0})});
  bool first = true;  // makes a cuBLAS workspace that stays
  for (const Json& workload : recorded.at("steps")) {
    if (!first && !workload.contains("logprob_start") && !workload.contains("error")) {
      check_workload(workload, peaks, points);
    }
    first = false;
  }
  return points;
}

bool is_sglang_startup(const Json& recorded) {
  return recorded.is_object() && recorded.value("engine", "") == "sglang";
}

std::vector<std::string> check_sglang_startup(const Json& recorded,
                                              const models::ModelSpec& model) {
  const bool served = recorded.at("outcome") == "served";
  try {
    sglang::Deployment deployment = deployment_of(recorded, model);
    const sglang::Startup own = sglang::simulate_startup(deployment);
    if (served != own.outcome.fits()) {
      return {fmt::format("outcome expected {} got {}: {}",
                          recorded.at("outcome").get<std::string>(), name_of(own.outcome.kind),
                          own.outcome.message)};
    }
    if (!served) {
      return {};
    }
    std::vector<std::string> off = Comparison(recorded).run(deployment, own);
    deployment.assumed.available_after_load = fed_free(recorded, own.stages.front());
    for (std::string& one : Comparison(recorded).run_fed(sglang::simulate_startup(deployment))) {
      off.push_back(std::move(one));
    }
    return off;
  } catch (const ConfigError& error) {
    if (!served) {
      return {};
    }
    return {fmt::format("refused: {}", error.what())};
  }
}

}  // namespace oomcast::golden
