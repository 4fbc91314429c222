// What is measured on a card, in which order and within which bounds; apart from how a card is
// asked, so that all of it can be tested without one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "sim/fit/probe_samples.hpp"
#include "validation/schedule/device.hpp"

namespace oomcast::validation {

struct Measurement {
  std::string probe;
  Settings settings;
  Bytes needs;      // of the card at its highest
  int warmups = 1;  // measured and thrown away
  int repeats = 3;
};

// Of a card, smallest needs first within a probe.
std::vector<Measurement> measurements_for(const Card& card);

// By probe; raised whenever what a probe measures changes.
const std::map<std::string, std::int64_t>& probe_versions();

struct RunOptions {
  double seconds = 300;     // no measurement begins later
  double free_share = 0.9;  // most of the free memory that a measurement may need
  bool allow_shared = false;
  std::string date = {};  // UTC, ISO 8601
  // After each measurement: how many are done, of how many, and the probe.
  std::function<void(std::size_t, std::size_t, const std::string&)> progress = {};
};

// Every measurement leaves samples, be it one that says why it was not made: memory short, not
// supported, failed, out of time. Throws Unsupported for a part of a card, or one that others use,
// without allow_shared.
fit::ProbeSamples run_measurements(Device& device, const std::vector<Measurement>& measurements,
                                   const RunOptions& options);

}  // namespace oomcast::validation
