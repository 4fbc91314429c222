// A calibration file: coefficients measured on a card, which replace presets or are added to what
// is computed. From an engine's logs (`engine` is there), from probes of the card, or from both.
//
// {"schema": "oomcast.calibration/1", "gpu": "NVIDIA H100 80GB HBM3", "engine": "vllm",
//  "engine_version": "0.19.0", "engine_version_range": ["0.18.0", "0.19.0"], "driver": "595.71",
//  "memory": {"device_total_mib": 81086, "context_mib": 520, "load_residual_mib": 3.1,
//             "activation_offset_mib": -2, "non_torch_residual_mib": 12,
//             "collectives_residual_mib": 40, "graph_residual_mib": 0.4,
//             "graph_node_kib": 7.6, "graph_executable_kib": 131},
//  "rates": {"gemm_gb_s_1": 2780, "gemm_tflops_2048": 800},
//  "step_time": {"step_ms": 14.1, "per_context_token_us": 0.285, "per_prefill_token_us": 85.4,
//                "per_prompt_step_ms": 0, "per_request_us": 0},
//  "origin": "measured", "cuda": "13.0", "date": "2026-11-30T07:35:00Z", "probes": {"graph": 1},
//  "coefficients": [...], "samples": [...], "logs": [...], "checksum": "..."}
// Every coefficient is optional; what is absent stays at its preset. Residuals are added to what
// is computed; `graph_residual_mib` for each captured graph. A file written by hand may also fix
// `non_torch_mib` and `graphs_mib` as a whole, and needs no checksum; a checksum that is there must
// agree.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sim/engines/deployment.hpp"
#include "sim/latency/step_time.hpp"

namespace oomcast {

// Bytes of the file's units.
inline constexpr double kKibi = 1024;
inline constexpr double kMebi = 1048576;

// What the card's matrix products reach, bytes or FLOP a second; by rows of the smaller matrix.
struct MeasuredRates {
  std::optional<double> gemm_bandwidth_1;
  std::optional<double> gemm_flops_256;
  std::optional<double> gemm_flops_2048;
  std::optional<double> gemm_flops_8192;
};

struct Calibration {
  std::string source;
  std::string gpu;
  bool synthetic = false;                // of a made-up device
  std::optional<launch::Engine> engine;  // none: any, as probes of the card are
  std::string engine_version;
  // First and last version it was measured with.
  std::optional<std::pair<Version, Version>> engine_versions;
  std::optional<Bytes> device_total;
  std::optional<Bytes> context;
  std::optional<Bytes> non_torch;
  std::optional<Bytes> graphs;
  std::optional<Bytes> graph_node;
  std::optional<Bytes> graph_executable;
  Residuals residuals;
  MeasuredRates rates;
  std::optional<MeasuredCoefficients> step_time;
};

// Throws ConfigError for a file that is no calibration, unknown keys, values out of range and a
// checksum that does not agree.
Calibration read_calibration(const std::string& path);
Calibration parse_calibration(std::string_view text, const std::string& source);

// Puts the coefficients into the input of the startup. Throws ConfigError for another engine, for a
// version too far from the measured ones and for a card that is not alike; a near version is used
// with a warning. Of a card alike (compute capability, multiprocessors and their threads) only what
// the driver does holds, context and graphs, with a warning.
void apply(const Calibration& calibration, EngineDeployment& deployment);

}  // namespace oomcast
