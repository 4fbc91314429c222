// Any text as a quantity, a version, a time: a value or none, never a crash; what is printed of a
// value reads back as the value.
#include <cstdint>
#include <string>
#include <string_view>

#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"
#include "sim/core/version.hpp"
#include "workloads/distribution.hpp"
#include "workloads/flat_reader.hpp"
#include "workloads/record.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oomcast;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto bytes = parse_bytes(text)) {
    OOMCAST_CHECK(*bytes >= Bytes{}, "negative bytes");
    OOMCAST_CHECK(parse_bytes(std::to_string(bytes->count())) == bytes, "bytes do not read back");
    format_bytes(*bytes);
  }
  if (const auto count = parse_count(text)) {
    OOMCAST_CHECK(*count >= 0, "negative count");
    format_count(*count);
    format_span(Nanos{*count});
    format_seconds(Nanos{*count});
  }
  if (const auto version = parse_version(text)) {
    OOMCAST_CHECK(parse_version(to_string(*version)) == version, "version does not read back");
  }
  parse_number(text);
  workloads::parse_date_time(text);
  workloads::scaled_decimal(text, 9);
  if (text.find("empirical") == std::string_view::npos) {
    try {
      workloads::parse_distribution(text, "input");
    } catch (const ConfigError&) {
      return 0;
    }
  }
  return 0;
}
