#include "sim/run/calibration.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/error.hpp"
#include "sim/core/json.hpp"

namespace oomcast {
namespace {

void known_keys(const JsonView& view, const std::vector<std::string>& keys) {
  for (const auto& [key, value] : view.raw().items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      view.complain(key, "a key of a calibration", did_you_mean(key, keys));
    }
  }
}

std::optional<Bytes> mebibytes(const JsonView& view, const char* key) {
  constexpr double kMost = 1 << 20;
  const auto value = view.number(key);
  if (!value) {
    return std::nullopt;
  }
  if (*value < 0 || *value > kMost) {
    view.complain(key, "0 to 1048576 MiB");
    return std::nullopt;
  }
  return Bytes{std::llround(*value * static_cast<double>(kMiB.count()))};
}

double seconds(const JsonView& view, const char* key, double unit) {
  constexpr double kMost = 1e9;
  const double value = view.number(key).value_or(0.0);
  if (value < 0 || value > kMost) {
    view.complain(key, "0 to 1e9");
    return 0;
  }
  return value * unit;
}

}  // namespace

Calibration read_calibration(const std::string& path) {
  return parse_calibration(read_text_file(path), path);
}

Calibration parse_calibration(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  Problems problems;
  const JsonView view(json, source, "", problems);
  problems.raise_if_any();
  known_keys(view, {"schema", "gpu", "engine", "engine_version", "memory", "step_time"});
  if (view.text("schema").value_or("") != "oomcast.calibration/1") {
    view.complain("schema", "\"oomcast.calibration/1\"");
  }
  if (view.text("engine").value_or("vllm") != "vllm") {
    view.complain("engine", "\"vllm\"");
  }
  Calibration out;
  out.source = source;
  out.gpu = view.text("gpu").value_or("");
  if (out.gpu.empty()) {
    view.complain("gpu", "the card it was measured on");
  }
  out.engine_version = view.text("engine_version").value_or("");
  if (const auto memory = view.object("memory")) {
    known_keys(*memory, {"context_mib", "non_torch_mib", "graphs_mib"});
    out.context = mebibytes(*memory, "context_mib");
    out.non_torch = mebibytes(*memory, "non_torch_mib");
    out.graphs = mebibytes(*memory, "graphs_mib");
  }
  if (const auto step = view.object("step_time")) {
    known_keys(*step, {"step_ms", "per_context_token_us", "per_prefill_token_us",
                       "per_prompt_step_ms", "per_request_us"});
    out.step_time =
        MeasuredCoefficients{.step = seconds(*step, "step_ms", 1e-3),
                             .per_context_token = seconds(*step, "per_context_token_us", 1e-6),
                             .per_prefill_token = seconds(*step, "per_prefill_token_us", 1e-6),
                             .per_prompt_step = seconds(*step, "per_prompt_step_ms", 1e-3),
                             .per_request = seconds(*step, "per_request_us", 1e-6)};
    if (out.step_time->step <= 0) {
      step->complain("step_ms", "a positive time");
    }
  }
  problems.raise_if_any();
  return out;
}

void apply(const Calibration& calibration, EngineDeployment& deployment) {
  const std::string& card = deployment.gpu.name;
  if (calibration.gpu != card) {
    throw ConfigError(Problem{calibration.source, "gpu", calibration.gpu, card,
                              "a calibration is only valid for the card it was measured on"});
  }
  const auto version = parse_version(calibration.engine_version);
  if (version && *version != deployment.launch.version) {
    deployment.warnings.push_back(
        fmt::format("{} was measured with {} {}, not {}", calibration.source,
                    launch::to_string(deployment.launch.engine), calibration.engine_version,
                    to_string(deployment.launch.version)));
  }
  if (calibration.context) {
    deployment.gpu.context_bytes = *calibration.context;
  }
  if (calibration.non_torch) {
    deployment.assumed.non_torch = calibration.non_torch;
  }
  if (calibration.graphs) {
    deployment.assumed.graphs = calibration.graphs;
  }
}

}  // namespace oomcast
