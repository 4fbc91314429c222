// A card as the schedule of measurements sees it: one that CUDA drives, or one that is made up.
//
// This header is all that host code and CUDA code share, so it includes nothing but plain C++.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/core/units.hpp"

namespace oomcast::validation {

using Settings = std::map<std::string, std::int64_t>;
using Values = std::map<std::string, double>;

// What ends one measurement, not the run.
struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// This card, driver or build cannot do it.
struct Unsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct DeviceFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Card {
  std::string name;
  std::int64_t sm_count = 0;
  std::int64_t threads_per_sm = 0;
  std::string compute_capability;
  Bytes total;
  std::int64_t devices = 1;  // in this machine
  bool mig = false;          // a part of a card
  std::string driver;
  std::string cuda;
};

// Moment by moment.
struct CardUse {
  Bytes free;                        // as cudaMemGetInfo sees it
  std::int64_t other_processes = 0;  // with a context on the card
  Bytes others_bytes;                // that they hold

  friend bool operator==(const CardUse&, const CardUse&) = default;
};

class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual Card card() = 0;
  [[nodiscard]] virtual CardUse use() = 0;
  // One repetition: sets up, measures, gives everything back. Throws OutOfMemory, Unsupported or
  // DeviceFailure.
  [[nodiscard]] virtual Values measure(const std::string& probe, const Settings& settings) = 0;
  // Since any fixed moment.
  [[nodiscard]] virtual double seconds() = 0;
  // Probes that this build or machine has not: "nccl: not found when this was built".
  [[nodiscard]] virtual std::vector<std::string> left_out() = 0;
};

}  // namespace oomcast::validation
