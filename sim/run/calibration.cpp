#include "sim/run/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/core/error.hpp"
#include "sim/core/json.hpp"
#include "sim/fit/guarded_file.hpp"

namespace oomcast {
namespace {

constexpr const char* kWhat = "a calibration";

// `least` 0 for quantities, negative for residuals.
std::optional<Bytes> size(const JsonView& view, const char* key, double least = 0,
                          double unit = kMebi) {
  constexpr double kMost = 1 << 20;
  const auto value = view.number(key);
  if (!value) {
    return std::nullopt;
  }
  if (*value < least || *value > kMost) {
    view.complain(key, fmt::format("{} to 1048576", least));
    return std::nullopt;
  }
  return Bytes{std::llround(*value * unit)};
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
  fit::known_keys(
      memory,
      {"device_total_mib", "context_mib", "non_torch_mib", "graphs_mib", "load_residual_mib",
       "activation_offset_mib", "non_torch_residual_mib", "collectives_residual_mib",
       "graph_residual_mib", "graph_node_kib", "graph_executable_kib"},
      kWhat);
  out.device_total = size(memory, "device_total_mib");
  if (out.device_total == Bytes{0}) {
    memory.complain("device_total_mib", "more than nothing");
  }
  out.context = size(memory, "context_mib");
  out.non_torch = size(memory, "non_torch_mib");
  out.graphs = size(memory, "graphs_mib");
  out.graph_node = size(memory, "graph_node_kib", 0, kKibi);
  out.graph_executable = size(memory, "graph_executable_kib", 0, kKibi);
  constexpr double kLeast = -1.0 * (1 << 20);
  const auto residual = [&](const char* key) {
    return size(memory, key, kLeast).value_or(Bytes{0});
  };
  out.residuals = {.load = residual("load_residual_mib"),
                   .activation = residual("activation_offset_mib"),
                   .non_torch = residual("non_torch_residual_mib"),
                   .collectives = residual("collectives_residual_mib"),
                   .graph = residual("graph_residual_mib")};
}

void read_step_time(const JsonView& step, Calibration& out) {
  fit::known_keys(step,
                  {"step_ms", "per_context_token_us", "per_prefill_token_us", "per_prompt_step_ms",
                   "per_request_us"},
                  kWhat);
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

// Per second; more than nothing.
std::optional<double> rate(const JsonView& view, const char* key, double unit) {
  constexpr double kMost = 1e9;
  const auto value = view.number(key);
  if (value && !(*value > 0 && *value <= kMost)) {
    view.complain(key, "more than 0, at most 1e9");
    return std::nullopt;
  }
  return value ? std::optional(*value * unit) : std::nullopt;
}

void read_rates(const JsonView& rates, Calibration& out) {
  fit::known_keys(rates, {"gemm_gb_s_1", "gemm_tflops_256", "gemm_tflops_2048", "gemm_tflops_8192"},
                  kWhat);
  out.rates = {.gemm_bandwidth_1 = rate(rates, "gemm_gb_s_1", 1e9),
               .gemm_flops_256 = rate(rates, "gemm_tflops_256", 1e12),
               .gemm_flops_2048 = rate(rates, "gemm_tflops_2048", 1e12),
               .gemm_flops_8192 = rate(rates, "gemm_tflops_8192", 1e12)};
}

void read_engine(const JsonView& view, Calibration& out) {
  if (const auto name = view.text("engine")) {
    out.engine = launch::parse_engine(*name);
    if (!out.engine) {
      view.complain("engine", "vllm, sglang or trtllm");
    }
  }
  out.engine_version = view.text("engine_version").value_or("");
  const auto version = parse_version(out.engine_version);
  if (view.has("engine_version") && !version) {
    view.complain("engine_version", "a version, as 0.19.0");
  }
  if (out.engine && !view.has("engine_version") && !view.has("engine_version_range")) {
    view.complain("engine_version", "the version of the engine it was measured with");
  }
  if (!view.has("engine") && (view.has("engine_version") || view.has("engine_version_range"))) {
    view.complain("engine", "the engine that the version is of");
  }
  const auto range = view.texts("engine_version_range");
  if (!range) {
    return;
  }
  const auto first = range->size() == 2 ? parse_version(range->front()) : std::nullopt;
  const auto last = range->size() == 2 ? parse_version(range->back()) : std::nullopt;
  if (!first || !last || *first > *last) {
    view.complain("engine_version_range", "the first and the last version");
  } else if (version && (*version < *first || *version > *last)) {
    view.complain("engine_version_range", "versions with engine_version among them");
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
  if (!calibration.engine || !versions ||
      (version >= versions->first && version <= versions->second)) {
    return;
  }
  const Version& near = version < versions->first ? versions->first : versions->second;
  const int releases = distance(near, version, *calibration.engine);
  const std::string_view engine = launch::to_string(*calibration.engine);
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

// What depends on the card's make alone carries over to it.
bool alike(const models::GpuSpec& left, const models::GpuSpec& right) {
  return left.compute_major == right.compute_major && left.compute_minor == right.compute_minor &&
         left.sm_count == right.sm_count && left.threads_per_sm == right.threads_per_sm;
}

bool alike(const std::string& name, const models::GpuSpec& card) {
  const std::vector<std::string> names = models::gpu_names();
  return std::find(names.begin(), names.end(), name) != names.end() &&
         alike(models::find_gpu(name), card);
}

// Whether it is of this very card; throws where it is of one too far from it, or of another engine.
bool check_card_and_engine(const Calibration& calibration, EngineDeployment& deployment) {
  const models::GpuSpec& card = deployment.gpu;
  const bool same = calibration.gpu == card.name;
  Problems problems;
  if (!same && !alike(calibration.gpu, card)) {
    problems.add({calibration.source, "gpu", calibration.gpu, card.name,
                  "a calibration is only valid for the card it was measured on"});
  }
  if (calibration.engine && *calibration.engine != deployment.launch.engine) {
    problems.add({calibration.source, "engine", std::string(launch::to_string(*calibration.engine)),
                  std::string(launch::to_string(deployment.launch.engine)),
                  "a calibration is only valid for the engine it was measured with"});
  }
  problems.raise_if_any();
  if (!same) {
    deployment.warnings.push_back(
        fmt::format("{} was measured on {}, which is like {}: of it only the context and the "
                    "driver's memory of graphs are taken",
                    calibration.source, calibration.gpu, card.name));
  }
  return same;
}

// A measured value takes the place of the preset among the assumptions.
void replace_assumption(EngineDeployment& deployment, const char* name, Bytes value,
                        const std::string& source) {
  const std::string start = fmt::format("{} = ", name);
  const auto replaced = std::erase_if(
      deployment.assumptions, [&](const std::string& text) { return text.starts_with(start); });
  if (replaced > 0) {
    deployment.assumptions.push_back(fmt::format(
        "{}{:.2f}: measured [{}]", start, static_cast<double>(value.count()) / kKibi, source));
  }
}

void apply_graphs(const Calibration& calibration, EngineDeployment& deployment) {
  if (calibration.graph_node) {
    deployment.graph_costs.node = *calibration.graph_node;
    replace_assumption(deployment, "graph_node_kib", *calibration.graph_node, calibration.source);
  }
  if (calibration.graph_executable) {
    deployment.graph_costs.executable = *calibration.graph_executable;
    replace_assumption(deployment, "graph_executable_kib", *calibration.graph_executable,
                       calibration.source);
  }
}

// Rates become shares of what the data sheet promises, as the roofline takes them.
void apply_rates(const MeasuredRates& rates, models::GpuSpec& gpu) {
  const auto share = [](const std::optional<double>& measured, double whole, double& out) {
    if (measured && whole > 0) {
      out = *measured / whole;
    }
  };
  share(rates.gemm_bandwidth_1, gpu.bandwidth, gpu.bf16.bandwidth_share_large);
  share(rates.gemm_flops_256, gpu.bf16.peak_flops, gpu.bf16.flops_share_256);
  share(rates.gemm_flops_2048, gpu.bf16.peak_flops, gpu.bf16.flops_share_2048);
  share(rates.gemm_flops_8192, gpu.bf16.peak_flops, gpu.bf16.flops_share_8192);
}

// What a card of this make cannot have, whoever wrote it into the file.
void check_values(const Calibration& calibration, EngineDeployment& deployment) {
  const models::GpuSpec& card = deployment.gpu;
  Problems problems;
  const auto check = [&](const char* place, double value, double most, const char* unit) {
    if (std::abs(value) > most) {
      problems.add({calibration.source, place, fmt::format("{:.6g}", value),
                    fmt::format("at most {:.6g} {}", most, unit),
                    fmt::format("a {} has no more", card.name)});
    }
  };
  const double total = to_mib(card.device_total);
  const auto check_size = [&](const char* place, const std::optional<Bytes>& size, double share) {
    check(place, to_mib(size.value_or(Bytes{0})), share * total, "MiB");
  };
  const Residuals& residuals = calibration.residuals;
  check_size("memory.device_total_mib", calibration.device_total, kMostOfTotal);
  check_size("memory.context_mib", calibration.context, 1);
  check_size("memory.non_torch_mib", calibration.non_torch, 1);
  check_size("memory.graphs_mib", calibration.graphs, 1);
  check_size("memory.load_residual_mib", residuals.load, 1);
  check_size("memory.activation_offset_mib", residuals.activation, 1);
  check_size("memory.non_torch_residual_mib", residuals.non_torch, 1);
  check_size("memory.collectives_residual_mib", residuals.collectives, 1);
  check_size("memory.graph_residual_mib", residuals.graph, 1);
  const MeasuredRates& rates = calibration.rates;
  const double bandwidth = most_reached(card.bandwidth) * 1e-9;
  const double flops = most_reached(card.bf16.peak_flops) * 1e-12;
  check("rates.gemm_gb_s_1", rates.gemm_bandwidth_1.value_or(0) * 1e-9, bandwidth, "GB/s");
  check("rates.gemm_tflops_256", rates.gemm_flops_256.value_or(0) * 1e-12, flops, "TFLOP/s");
  check("rates.gemm_tflops_2048", rates.gemm_flops_2048.value_or(0) * 1e-12, flops, "TFLOP/s");
  check("rates.gemm_tflops_8192", rates.gemm_flops_8192.value_or(0) * 1e-12, flops, "TFLOP/s");
  problems.raise_if_any();
  constexpr double kWhole = 0.9;
  if (calibration.device_total && to_mib(*calibration.device_total) < kWhole * total) {
    deployment.warnings.push_back(fmt::format(
        "{} gives the card {:.0f} MiB, {:.0f} % of what a {} has: of a part of it (MIG)?",
        calibration.source, to_mib(*calibration.device_total),
        100 * to_mib(*calibration.device_total) / total, card.name));
  }
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
  fit::known_keys(view,
                  {"schema", "gpu", "engine", "engine_version", "engine_version_range", "driver",
                   "cuda", "date", "origin", "probes", "memory", "rates", "step_time",
                   "coefficients", "samples", "logs", "notes", "checksum"},
                  kWhat);
  if (view.text("schema").value_or("") != "oomcast.calibration/1") {
    view.complain("schema", "\"oomcast.calibration/1\"");
  }
  Calibration out;
  out.source = source;
  out.gpu = view.text("gpu").value_or("");
  if (out.gpu.empty()) {
    view.complain("gpu", "the card it was measured on");
  }
  const std::string origin = view.text("origin").value_or("measured");
  if (origin != "measured" && origin != "synthetic") {
    view.complain("origin", "measured or synthetic");
  }
  out.synthetic = origin == "synthetic";
  read_engine(view, out);
  if (const auto memory = view.object("memory")) {
    read_memory(*memory, out);
  }
  if (const auto rates = view.object("rates")) {
    read_rates(*rates, out);
  }
  if (const auto step = view.object("step_time")) {
    read_step_time(*step, out);
  }
  fit::check_checksum(view);
  problems.raise_if_any();
  return out;
}

void apply(const Calibration& calibration, EngineDeployment& deployment) {
  const bool same_card = check_card_and_engine(calibration, deployment);
  check_version(calibration, deployment);
  if (same_card) {
    check_values(calibration, deployment);
  }
  if (calibration.synthetic) {
    deployment.warnings.push_back(calibration.source + " is of a made-up device, not of a card");
  }
  if (calibration.context) {
    deployment.gpu.context_bytes = *calibration.context;
  }
  apply_graphs(calibration, deployment);
  if (!same_card) {
    return;
  }
  if (calibration.device_total) {
    deployment.gpu.device_total = *calibration.device_total;
  }
  if (calibration.non_torch) {
    deployment.assumed.non_torch = calibration.non_torch;
  }
  if (calibration.graphs) {
    deployment.assumed.graphs = calibration.graphs;
  }
  deployment.assumed.residuals = calibration.residuals;
  apply_rates(calibration.rates, deployment.gpu);
}

}  // namespace oomcast
