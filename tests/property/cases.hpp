// What the property tests share: how many cases, and which one broke an invariant.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"

namespace oomcast {

// OOMCAST_PROPERTY_CASES, or 1500.
inline std::int64_t property_cases() {
  const char* text = std::getenv("OOMCAST_PROPERTY_CASES");
  return text != nullptr ? std::atoll(text) : 1500;  // NOLINT(cert-err34-c): 0 runs nothing
}

inline std::int64_t current_seed = -1;

// Draws of one case.
class RandomCase {
 protected:
  explicit RandomCase(RandomStream random) : random_(std::move(random)) {}

  std::int64_t number(std::int64_t low, std::int64_t high) {
    return uniform_int(random_, low, high);
  }
  bool chance(std::int64_t percent) { return number(1, 100) <= percent; }
  bool flip(std::int64_t odds) { return number(1, odds) == 1; }
  template <typename T>
  T pick(const std::vector<T>& choices) {
    return choices[static_cast<std::size_t>(number(0, std::ssize(choices) - 1))];
  }

  RandomStream random_;
};

// A broken invariant aborts; it must say in which case.
class PropertyTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    set_check_hook([] { fmt::print(stderr, "property case: seed {}\n", current_seed); });
  }
};

}  // namespace oomcast
