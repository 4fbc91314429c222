// Any text as an axis, a condition, a range, a criterion or a journalled point: a value or a
// ConfigError, never a crash.
#include <cstdint>
#include <string>

#include "sim/core/error.hpp"
#include "sim/search/axis.hpp"
#include "sim/search/boundary.hpp"
#include "sim/search/condition.hpp"
#include "sim/search/point.hpp"

namespace {

template <typename Read>
void attempt(const Read& read) {
  try {
    read();
  } catch (const oomcast::ConfigError&) {
    // what was to be shown
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oomcast;
  const std::string text(reinterpret_cast<const char*>(data), size);
  Problems problems;
  const search::Axis axis = search::parse_axis(text, problems);
  for (const auto& value : axis.values) {
    OOMCAST_CHECK(!problems.empty() || value.size() == axis.names.size(), "a value a name");
  }
  attempt([&] { search::Condition(text).holds([](const std::string&) { return 1.0; }); });
  attempt([&] { search::Criterion{text}; });
  attempt([&] { search::point_from_json(parse_json(text, "input"), "input"); });
  if (const auto range = search::parse_range(text, {1, 0}, problems)) {
    OOMCAST_CHECK(range->count() > 0, "a range without values");
    range->at(range->count() - 1);
  }
  return 0;
}
