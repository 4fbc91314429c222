// Collects which settings of one source are out of bounds, so that all are said at once.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast {

class SettingChecks {
 public:
  SettingChecks(const std::string& source, Problems& problems)
      : source_(source), problems_(problems) {}

  void range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value < low || value > high) {
      problem(name, fmt::format("{}", value), fmt::format("{} to {}", low, high));
    }
  }
  void problem(const char* name, std::string value, std::string expected) {
    problems_.add({source_, name, std::move(value), std::move(expected), {}});
  }

 private:
  const std::string& source_;
  Problems& problems_;
};

}  // namespace oomcast
