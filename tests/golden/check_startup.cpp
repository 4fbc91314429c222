// check_startup [--peaks] FILE…: recorded startups (.jsonl, .jsonl.gz) against ours. A line a run,
// last "N of M runs matched"; exit 0 from 95 % on. With --peaks: steps, graphs and live tensors of
// the op graph instead, last how many of them agree; exit 0 from 90 % of the lines on. A run's
// model config is looked for beside the file and in ../../model_configs from there.
#include <fmt/format.h>

#include <filesystem>

#include "models/config_reader.hpp"
#include "tests/golden/recording.hpp"
#include "tests/golden/sglang_startup_check.hpp"
#include "tests/golden/startup_check.hpp"

namespace oomcast::golden {
namespace {

namespace fs = std::filesystem;

struct Tally {
  bool peaks = false;
  int matched = 0;
  int runs = 0;
  PeakPoints points;
};

models::ModelSpec model_of(const Json& recorded, const fs::path& file) {
  const auto name = recorded.at("config_file").get<std::string>();
  const fs::path beside = file.parent_path() / name;
  return models::read_model_config(
      fs::exists(beside) ? beside.string()
                         : (file.parent_path() / "../../model_configs" / name).string());
}

std::vector<std::string> check_line_peaks(const Json& recorded, const models::ModelSpec& model,
                                          PeakPoints& sum) {
  const PeakPoints points = is_sglang_startup(recorded) ? check_sglang_steps(recorded, model)
                                                        : check_peaks(recorded, model);
  sum.steps += points.steps;
  sum.steps_within += points.steps_within;
  sum.graphs += points.graphs;
  sum.graphs_within += points.graphs_within;
  sum.tensors += points.tensors;
  sum.tensors_found += points.tensors_found;
  return points.off;
}

std::vector<std::string> check_line(const std::string& line, const fs::path& file, Tally& tally) {
  try {
    const Json recorded = parse_json(line, file.string());
    const models::ModelSpec model = model_of(recorded, file);
    if (tally.peaks) {
      return check_line_peaks(recorded, model, tally.points);
    }
    return is_sglang_startup(recorded) ? check_sglang_startup(recorded, model)
                                       : check_startup(recorded, model);
  } catch (const ConfigError& error) {
    return {fmt::format("refused: {}", error.what())};
  } catch (const Json::exception& error) {
    return {fmt::format("not a recorded startup: {}", error.what())};
  }
}

void check_file(const fs::path& file, Tally& tally) {
  const std::unique_ptr<std::istream> in = open_recording(file.string());
  std::string line;
  for (int number = 1; next_line(*in, file.string(), line); ++number) {
    const std::vector<std::string> off = check_line(line, file, tally);
    ++tally.runs;
    tally.matched += off.empty() ? 1 : 0;
    fmt::print("{}:{} {}\n", file.filename().string(), number,
               off.empty() ? "matched" : fmt::format("off: {}", fmt::join(off, "; ")));
  }
}

}  // namespace
}  // namespace oomcast::golden

int main(int argc, char** argv) {
  oomcast::golden::Tally tally;
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::string_view(argv[i]) == "--peaks") {
        tally.peaks = true;
      } else {
        oomcast::golden::check_file(argv[i], tally);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "check_startup: {}\n", error.what());
    return 2;
  }
  const double enough = tally.peaks ? 0.90 : 0.95;
  if (tally.peaks) {
    const auto& points = tally.points;
    fmt::print("steps {} of {}, graph pools {} of {}, live tensors {} of {}\n", points.steps_within,
               points.steps, points.graphs_within, points.graphs, points.tensors_found,
               points.tensors);
  }
  fmt::print("{} of {} runs matched\n", tally.matched, tally.runs);
  return tally.runs > 0 && tally.matched >= enough * tally.runs ? 0 : 1;
}
