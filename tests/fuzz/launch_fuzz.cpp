// Any text as a launch line: read, or refused with ConfigError; what was read survives JSON.
#include <cstdint>
#include <string_view>

#include "sim/core/error.hpp"
#include "sim/launch/launch.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oomcast;
  // The first byte chooses the version, so that rows of all versions are reached.
  if (size == 0) {
    return 0;
  }
  static constexpr const char* kVersions[] = {"",       "0.10.0", "0.11.0", "0.13.0",
                                              "0.19.0", "0.26.0", "0.33.0", "0.8.5"};
  const std::string_view line(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    launch::Launch read =
        launch::parse_launch(line, {.engine = {}, .engine_version = kVersions[data[0] % 8]});
    const auto text = launch::to_json(read).dump(-1, ' ', false, Json::error_handler_t::replace);
    const launch::Launch again = launch::launch_from_json(parse_json(text, "launch"), "launch");
    OOMCAST_CHECK(again.flags.size() == read.flags.size(), "flags were lost");
    for (const char* flag : {"max-num-seqs", "compilation-config.a.b", "kv-cache-dtype"}) {
      if (read.engine == launch::Engine::kVllm) {
        launch::set_flag(read, flag, line.substr(0, 20));
      }
    }
  } catch (const ConfigError&) {
    return 0;
  }
  return 0;
}
