// Numbers in the environment of a launch line.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <optional>
#include <system_error>

#include "sim/core/error.hpp"
#include "sim/launch/launch.hpp"

namespace oomcast {

// The value of NAME; nothing where it is not set, or is no number in [low, high], which is added to
// `problems`.
template <typename Number>
std::optional<Number> number_variable(const launch::Launch& launch, const char* name, Number low,
                                      Number high, Problems& problems) {
  const auto text = launch.variable(name);
  if (!text) {
    return std::nullopt;
  }
  Number value{};
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc{} || end != text->data() + text->size() ||
      !(value >= low && value <= high)) {
    const bool open = high == std::numeric_limits<Number>::max();
    problems.add(
        {"launch line", name, *text,
         open ? fmt::format("a number from {} on", low) : fmt::format("{} to {}", low, high), ""});
    return std::nullopt;
  }
  return value;
}

}  // namespace oomcast
