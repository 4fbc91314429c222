// A calibration file: coefficients measured on a card with an engine, which replace presets.
//
// {"schema": "oomcast.calibration/1", "gpu": "NVIDIA H100 80GB HBM3", "engine": "vllm",
//  "engine_version": "0.19.0",
//  "memory": {"context_mib": 520, "non_torch_mib": 256, "graphs_mib": 930},
//  "step_time": {"step_ms": 14.1, "per_context_token_us": 0.285, "per_prefill_token_us": 85.4,
//                "per_prompt_step_ms": 0, "per_request_us": 0}}
// Every coefficient is optional; what is absent stays at its preset.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/engines/deployment.hpp"
#include "sim/latency/step_time.hpp"

namespace oomcast {

struct Calibration {
  std::string source;
  std::string gpu;
  std::string engine_version;
  std::optional<Bytes> context;
  std::optional<Bytes> non_torch;
  std::optional<Bytes> graphs;
  std::optional<MeasuredCoefficients> step_time;
};

// Throws ConfigError for a file that is no calibration, unknown keys and values out of range.
Calibration read_calibration(const std::string& path);
Calibration parse_calibration(std::string_view text, const std::string& source);

// Puts the coefficients into the input of the startup. Throws ConfigError for another card; another
// engine version is used with a warning.
void apply(const Calibration& calibration, EngineDeployment& deployment);

}  // namespace oomcast
