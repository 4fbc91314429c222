// What probes measured on a card, as a calibration of it for any engine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpu.hpp"
#include "sim/fit/probe_fit.hpp"
#include "sim/run/calibration.hpp"

namespace oomcast {

struct ProbeCalibration {
  Calibration calibration;
  fit::ProbeFit fit;
  std::vector<fit::ProbeSamples> runs;  // newest first
};

// Throws ConfigError for runs of different cards, a card that the catalog does not have, and where
// no sample has its form, with the residuals.
ProbeCalibration calibrate_from_probes(std::vector<fit::ProbeSamples> runs);

// The section of a calibration file that a coefficient stands in; kNone: plans do not take it yet.
enum class ProbeSection : std::uint8_t { kNone, kMemory, kRates };
ProbeSection probe_section(std::string_view coefficient);
// What a plan takes without the calibration, where that does not depend on the engine.
std::optional<double> probe_preset(std::string_view coefficient, const models::GpuSpec& gpu);

// "graph_node_kib: samples scatter by 14.2 % around a + b x + c z: left at the preset"
std::string refused_note(const fit::RefusedFit& refused);

// For a terminal: values with intervals, then what was refused with its residuals.
std::string probe_table(const ProbeCalibration& calibration);

}  // namespace oomcast
