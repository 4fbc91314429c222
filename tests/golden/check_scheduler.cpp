// check_scheduler FILE...: runs recorded scheduler scenarios through our schedulers.
// Prints "NAME matched" or the first difference of each; exit 0 only if all matched.
#include <fmt/core.h>

#include <filesystem>
#include <string>

#include "tests/golden/recording.hpp"
#include "tests/golden/sglang_scenario.hpp"
#include "tests/golden/vllm_scenario.hpp"

namespace {

// "" if matched.
std::string check_file(const std::string& path) {
  using namespace oomcast;
  const std::unique_ptr<std::istream> in = golden::open_recording(path);
  std::string line;
  if (!golden::next_line(*in, path, line)) {
    throw ConfigError(Problem{path, "", "an empty file", "a recording", {}});
  }
  const Json header = parse_json(line, path);
  const std::string engine =
      header.is_object() && header.contains("engine") && header["engine"].is_string()
          ? header["engine"].get<std::string>()
          : "";
  if (engine == "vllm") {
    return golden::check_recording(*in, path, golden::read_scenario(header, path));
  }
  if (engine == "sglang") {
    return golden::check_sglang_recording(*in, path, golden::read_sglang_scenario(header, path));
  }
  return fmt::format("not supported: engine \"{}\"", engine);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: check_scheduler FILE...\n");
    return 2;
  }
  int matched = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string path = argv[i];
    const std::string name = std::filesystem::path(path).filename().string();
    std::string found;
    try {
      found = check_file(path);
    } catch (const std::exception& error) {
      found = error.what();
    }
    matched += found.empty() ? 1 : 0;
    fmt::print("{} {}\n", name, found.empty() ? "matched" : found);
  }
  fmt::print("{} of {} matched\n", matched, argc - 1);
  return matched == argc - 1 ? 0 : 1;
}
