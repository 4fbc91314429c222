// Logs -> coefficients: least squares over every figure that the logs print and the startup
// predicts.
//
// The startup itself is the model. How a figure moves with a coefficient is found by running it
// with the coefficient changed, so no formula of an engine's accounting is repeated here. Each
// figure weighs by its last printed digit. A coefficient on which no figure depends, or only
// together with others that explain it as well, stays at its preset. So does what a calibration
// from probes already has: a counter read to the byte is closer than two decimals of a log.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/logs/engine_log.hpp"
#include "sim/run/calibration.hpp"
#include "sim/run/plan.hpp"

namespace oomcast {

// One start of a log and what it ran; input.card.total is left to the fit.
struct CalibrationSample {
  std::string log;
  const logs::EngineRun* run = nullptr;
  DeploymentInput input;
};

struct LogPlace {
  std::string log;
  std::int64_t line = 0;
};

struct Coefficient {
  std::string name;  // key in the file's `memory`
  Bytes preset;
  Bytes value;
  bool fitted = false;  // else too few data: at its preset
  Bytes residual;       // what is left in the figures that depend on it, root mean square
  std::int64_t figures = 0;
  std::vector<LogPlace> places;
};

struct CalibrationFit {
  Calibration calibration;
  std::vector<Coefficient> coefficients;
  std::vector<std::string> notes;
};

// `known` is taken as it is and fitted around. All samples are of one card and engine; throws
// ConfigError when they are not, when a sample cannot be resolved, or when no figure is both logged
// and predicted.
CalibrationFit fit_calibration(const std::vector<CalibrationSample>& samples,
                               const Calibration& known = {});

}  // namespace oomcast
