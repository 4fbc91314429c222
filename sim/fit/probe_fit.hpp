// Samples of probes -> coefficients, each by its declared form.
//
// Samples of several runs on one card are taken together where driver, CUDA and the probe's version
// agree; where they do not, the newest run that has the coefficient decides.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/fit/form.hpp"
#include "sim/fit/probe_samples.hpp"

namespace oomcast::fit {

// What a coefficient rests on.
struct ProbeEvidence {
  std::string probe;
  std::int64_t version = 0;
  std::string driver;
  std::string cuda;
  std::string date;                // of its newest run
  std::vector<std::string> files;  // the runs
  std::string form;                // "a + b x, x nodes"
  double rms_share = 0;            // scatter of the samples around the form
  std::int64_t samples = 0;
  std::int64_t outliers = 0;
};

struct ProbeCoefficient {
  std::string name;  // "graph_node_kib"
  std::string unit;  // "KiB"
  Estimate estimate;
  ProbeEvidence evidence;
};

// A form that the samples do not have.
struct RefusedFit {
  std::vector<std::string> names;  // coefficients that stay unknown
  std::string reason;
  std::string residuals;  // the table
};

struct ProbeFit {
  std::vector<ProbeCoefficient> coefficients;
  std::vector<RefusedFit> refused;
  std::vector<std::string> notes;  // what was not measured, left out or disturbed
};

// One or more runs on one card. Throws ConfigError where they are of different cards, or of a real
// and a made-up one.
ProbeFit fit_probes(const std::vector<ProbeSamples>& runs);

}  // namespace oomcast::fit
