// Any bytes as a recording of allocator calls: a verdict or ConfigError, never a crash.
#include <cstdint>
#include <string>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"
#include "tests/golden/allocator_check.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oomcast;
  try {
    workloads::LineReader in(std::string(reinterpret_cast<const char*>(data), size), "recording");
    golden::check_allocator_recording(in);
  } catch (const ConfigError&) {
    return 0;
  } catch (const ArithmeticOverflow&) {
    return 0;
  }
  return 0;
}
