#include "sim/run/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/core/digest.hpp"
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

// `least` 0 for quantities, negative for residuals.
std::optional<Bytes> mebibytes(const JsonView& view, const char* key, double least = 0) {
  constexpr double kMost = 1 << 20;
  const auto value = view.number(key);
  if (!value) {
    return std::nullopt;
  }
  if (*value < least || *value > kMost) {
    view.complain(key, fmt::format("{} to 1048576 MiB", least));
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

void read_memory(const JsonView& memory, Calibration& out) {
  known_keys(memory, {"device_total_mib", "context_mib", "non_torch_mib", "graphs_mib",
                      "load_residual_mib", "activation_offset_mib", "non_torch_residual_mib",
                      "collectives_residual_mib", "graph_residual_mib"});
  out.device_total = mebibytes(memory, "device_total_mib");
  if (out.device_total == Bytes{0}) {
    memory.complain("device_total_mib", "more than nothing");
  }
  out.context = mebibytes(memory, "context_mib");
  out.non_torch = mebibytes(memory, "non_torch_mib");
  out.graphs = mebibytes(memory, "graphs_mib");
  constexpr double kLeast = -1.0 * (1 << 20);
  const auto residual = [&](const char* key) {
    return mebibytes(memory, key, kLeast).value_or(Bytes{0});
  };
  out.residuals = {.load = residual("load_residual_mib"),
                   .activation = residual("activation_offset_mib"),
                   .non_torch = residual("non_torch_residual_mib"),
                   .collectives = residual("collectives_residual_mib"),
                   .graph = residual("graph_residual_mib")};
}

void read_step_time(const JsonView& step, Calibration& out) {
  known_keys(step, {"step_ms", "per_context_token_us", "per_prefill_token_us", "per_prompt_step_ms",
                    "per_request_us"});
  out.step_time =
      MeasuredCoefficients{.step = seconds(step, "step_ms", 1e-3),
                           .per_context_token = seconds(step, "per_context_token_us", 1e-6),
                           .per_prefill_token = seconds(step, "per_prefill_token_us", 1e-6),
                           .per_prompt_step = seconds(step, "per_prompt_step_ms", 1e-3),
                           .per_request = seconds(step, "per_request_us", 1e-6)};
  if (out.step_time->step <= 0) {
    step.complain("step_ms", "a positive time");
  }
}

void read_engine(const JsonView& view, Calibration& out) {
  const auto engine = launch::parse_engine(view.text("engine").value_or("vllm"));
  if (!engine) {
    view.complain("engine", "vllm, sglang or trtllm");
  }
  out.engine = engine.value_or(launch::Engine::kVllm);
  out.engine_version = view.text("engine_version").value_or("");
  const auto range = view.texts("engine_version_range");
  if (!range) {
    return;
  }
  const auto first = range->size() == 2 ? parse_version(range->front()) : std::nullopt;
  const auto last = range->size() == 2 ? parse_version(range->back()) : std::nullopt;
  if (!first || !last || *first > *last) {
    view.complain("engine_version_range", "the first and the last version");
  } else {
    out.engine_versions = {*first, *last};
  }
}

// Releases between two versions, counted where the engine counts them: vLLM and TensorRT-LLM by
// the second number, SGLang by the third within a second.
int distance(const Version& from, const Version& to, launch::Engine engine) {
  constexpr int kFar = 1000;
  constexpr int kPatchesOfAMinor = 24;
  if (from.parts[0] != to.parts[0]) {
    return kFar;
  }
  const int minors = std::abs(from.parts[1] - to.parts[1]);
  return engine == launch::Engine::kSglang
             ? std::abs(kPatchesOfAMinor * (from.parts[1] - to.parts[1]) + from.parts[2] -
                        to.parts[2])
             : minors;
}

// How many releases a calibration may be away: accounting changes every few of them.
constexpr int kFarthestRelease = 10;

void check_version(const Calibration& calibration, EngineDeployment& deployment) {
  auto versions = calibration.engine_versions;
  if (const auto only = parse_version(calibration.engine_version); only && !versions) {
    versions = {*only, *only};
  }
  const Version& version = deployment.launch.version;
  if (!versions || (version >= versions->first && version <= versions->second)) {
    return;
  }
  const Version& near = version < versions->first ? versions->first : versions->second;
  const int releases = distance(near, version, calibration.engine);
  const std::string_view engine = launch::to_string(calibration.engine);
  if (releases > kFarthestRelease) {
    throw ConfigError(Problem{calibration.source, "engine_version", to_string(near),
                              fmt::format("a version within {} releases of {} {}", kFarthestRelease,
                                          engine, to_string(version)),
                              "what the engine counts has changed in between"});
  }
  deployment.warnings.push_back(fmt::format("{} was measured with {} {}, not {}",
                                            calibration.source, engine, to_string(near),
                                            to_string(version)));
}

}  // namespace

Calibration read_calibration(const std::string& path) {
  return parse_calibration(read_text_file(path), path);
}

std::string calibration_checksum(Json file) {
  file.erase("checksum");
  Digest digest;
  digest.add(std::string_view(file.dump(-1, ' ', false, Json::error_handler_t::replace)));
  return digest.hex();
}

Calibration parse_calibration(std::string_view text, const std::string& source) {
  const Json json = parse_json(text, source);
  Problems problems;
  const JsonView view(json, source, "", problems);
  problems.raise_if_any();
  known_keys(view, {"schema", "gpu", "engine", "engine_version", "engine_version_range", "driver",
                    "memory", "step_time", "coefficients", "logs", "notes", "checksum"});
  if (view.text("schema").value_or("") != "oomcast.calibration/1") {
    view.complain("schema", "\"oomcast.calibration/1\"");
  }
  Calibration out;
  out.source = source;
  out.gpu = view.text("gpu").value_or("");
  if (out.gpu.empty()) {
    view.complain("gpu", "the card it was measured on");
  }
  read_engine(view, out);
  if (const auto memory = view.object("memory")) {
    read_memory(*memory, out);
  }
  if (const auto step = view.object("step_time")) {
    read_step_time(*step, out);
  }
  if (const auto checksum = view.text("checksum");
      checksum && *checksum != calibration_checksum(json)) {
    view.complain("checksum", calibration_checksum(json),
                  "the file is damaged, or was edited: then remove the checksum");
  }
  problems.raise_if_any();
  return out;
}

void apply(const Calibration& calibration, EngineDeployment& deployment) {
  const std::string& card = deployment.gpu.name;
  Problems problems;
  if (calibration.gpu != card) {
    problems.add({calibration.source, "gpu", calibration.gpu, card,
                  "a calibration is only valid for the card it was measured on"});
  }
  if (calibration.engine != deployment.launch.engine) {
    problems.add({calibration.source, "engine", std::string(launch::to_string(calibration.engine)),
                  std::string(launch::to_string(deployment.launch.engine)),
                  "a calibration is only valid for the engine it was measured with"});
  }
  problems.raise_if_any();
  check_version(calibration, deployment);
  if (calibration.device_total) {
    deployment.gpu.device_total = *calibration.device_total;
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
  deployment.assumed.residuals = calibration.residuals;
}

}  // namespace oomcast
