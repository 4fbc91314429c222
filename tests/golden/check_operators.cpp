// check_operators FILE…: recorded operators (.jsonl, .jsonl.gz) against ours. A line for each that
// is off, last "N of M operators matched"; exit 0 if all did.
#include <fmt/format.h>

#include <filesystem>

#include "tests/golden/operators_check.hpp"
#include "tests/golden/recording.hpp"

namespace oomcast::golden {
namespace {

struct Tally {
  int matched = 0;
  int exact = 0;
  int lines = 0;
};

OperatorResult check_line(const Json& recorded, const models::GpuSpec& gpu) {
  try {
    return check_operator(recorded, gpu);
  } catch (const ConfigError& error) {
    return {{fmt::format("refused: {}", error.what())}, false};
  } catch (const Json::exception& error) {
    return {{fmt::format("not a recorded operator: {}", error.what())}, false};
  }
}

void check_file(const std::filesystem::path& file, Tally& tally) {
  const std::unique_ptr<std::istream> in = open_recording(file.string());
  std::string line;
  models::GpuSpec gpu = recorded_gpu(Json::object());
  for (int number = 1; next_line(*in, file.string(), line); ++number) {
    const Json recorded = parse_json(line, file.string());
    if (number == 1 && recorded.is_object() && !recorded.contains("op")) {
      gpu = recorded_gpu(recorded);
      continue;
    }
    const OperatorResult result = check_line(recorded, gpu);
    ++tally.lines;
    tally.matched += result.off.empty() ? 1 : 0;
    tally.exact += result.exact_left_and_peak ? 1 : 0;
    if (!result.off.empty()) {
      fmt::print("{}:{} {} off: {}\n", file.filename().string(), number,
                 recorded.is_object() ? recorded.value("op", "") : "", fmt::join(result.off, "; "));
    }
  }
}

}  // namespace
}  // namespace oomcast::golden

int main(int argc, char** argv) {
  oomcast::golden::Tally tally;
  try {
    for (int i = 1; i < argc; ++i) {
      oomcast::golden::check_file(argv[i], tally);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "check_operators: {}\n", error.what());
    return 2;
  }
  fmt::print("left and peak exact in {}\n", tally.exact);
  fmt::print("{} of {} operators matched\n", tally.matched, tally.lines);
  return tally.lines > 0 && tally.matched == tally.lines ? 0 : 1;
}
