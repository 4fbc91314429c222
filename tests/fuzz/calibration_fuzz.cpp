// A calibration file is a calibration, or one ConfigError.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "sim/core/error.hpp"
#include "sim/run/calibration.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    oomcast::parse_calibration(text, "fuzz.json");
  } catch (const oomcast::ConfigError& error) {
    OOMCAST_CHECK(!error.problems().empty(), "an error without a problem");
  }
  return 0;
}
