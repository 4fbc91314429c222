// What the property tests share: how many cases, and which one broke an invariant.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>

#include "sim/core/error.hpp"

namespace oomcast {

// OOMCAST_PROPERTY_CASES, or 1500.
inline std::int64_t property_cases() {
  const char* text = std::getenv("OOMCAST_PROPERTY_CASES");
  return text != nullptr ? std::atoll(text) : 1500;  // NOLINT(cert-err34-c): 0 runs nothing
}

inline std::int64_t current_seed = -1;

// A broken invariant aborts; it must say in which case.
class PropertyTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    set_check_hook([] { fmt::print(stderr, "property case: seed {}\n", current_seed); });
  }
};

}  // namespace oomcast
