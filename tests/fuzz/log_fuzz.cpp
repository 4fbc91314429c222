// A log is read, or refused with a ConfigError; what was read can be printed.
#include <cstddef>
#include <cstdint>
#include <string>

#include "sim/core/error.hpp"
#include "sim/logs/log_reader.hpp"
#include "sim/logs/python_repr.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const oomcast::logs::EngineLog log = oomcast::logs::read_log_text(text, "fuzz.log");
    OOMCAST_CHECK(!log.runs.empty(), "a log without a start is refused");
    for (const oomcast::logs::EngineRun& run : log.runs) {
      OOMCAST_CHECK(run.deciding_rank() < run.ranks.size(), "a rank that is not there");
      for (const oomcast::logs::Reading& reading : run.readings) {
        OOMCAST_CHECK(reading.rank < run.ranks.size() && reading.line <= log.lines,
                      "a reading from nowhere");
      }
      const auto settings =
          oomcast::logs::parse_python_settings(run.text(oomcast::logs::Text::kArguments).value);
      OOMCAST_CHECK(settings.is_object(), "settings are an object");
    }
  } catch (const oomcast::ConfigError& error) {
    OOMCAST_CHECK(!error.problems().empty(), "an error without a problem");
  }
  return 0;
}
