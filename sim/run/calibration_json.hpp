// What was fitted -> the calibration file.
#pragma once

#include <vector>

#include "sim/core/json.hpp"
#include "sim/run/calibration_fit.hpp"
#include "sim/run/probe_calibration.hpp"

namespace oomcast {

// Each may be absent, not both. With both, the fit of the logs is the one around the probes'.
struct CalibrationEvidence {
  const CalibrationFit* logs = nullptr;
  const std::vector<CalibrationSample>* samples = nullptr;  // of the logs
  const ProbeCalibration* probes = nullptr;
};

// The file, checksum included. Files of samples appear by name, without their folder, so that the
// same evidence gives the same bytes wherever it lies.
OrderedJson calibration_json(const CalibrationEvidence& evidence);

}  // namespace oomcast
