#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iostream>

#include "sim/cli/command.hpp"
#include "sim/core/atomic_output.hpp"
#include "sim/core/error.hpp"
#include "sim/logs/log_reader.hpp"
#include "sim/run/calibration_fit.hpp"

namespace oomcast::cli {
namespace {

// The starts of the logs of which enough is known; why not, for the others.
std::vector<CalibrationSample> samples_of(const std::vector<logs::EngineLog>& logs,
                                          const ExplainOptions& given, Problems& problems,
                                          std::vector<std::string>& notes) {
  std::vector<CalibrationSample> samples;
  for (const logs::EngineLog& log : logs) {
    for (const logs::EngineRun& run : log.runs) {
      Identity identity = identify(run, given);
      if (!identity.missing.empty()) {
        problems.add({log.name, fmt::format("line {}", run.first_line), "",
                      "a start of which all is known",
                      fmt::format("missing: {}", identity.missing.front())});
        continue;
      }
      // What the log shows of the card is there to be fitted, not given.
      identity.input.card = given.card;
      samples.push_back({log.name, &run, identity.input});
      for (const std::string& note : identity.notes) {
        notes.push_back(fmt::format("{}, line {}: {}", log.name, run.first_line, note));
      }
    }
  }
  return samples;
}

std::string file_name(const Calibration& calibration) {
  std::string name = fmt::format("calibration-{}-{}-{}", calibration.gpu,
                                 launch::to_string(calibration.engine), calibration.engine_version);
  for (char& letter : name) {
    const bool kept = std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '.';
    letter = kept ? letter : '-';
  }
  return name + ".json";
}

std::string table(const CalibrationFit& fit) {
  std::string out = fmt::format("  {:<28}{:>12}{:>12}{:>12}{:>9}\n", "coefficient", "preset MiB",
                                "MiB", "residual", "figures");
  for (const Coefficient& coefficient : fit.coefficients) {
    out +=
        fmt::format("  {:<28}{:>12.1f}{:>12.1f}{:>12}{:>9}{}\n", coefficient.name,
                    to_mib(coefficient.preset), to_mib(coefficient.value),
                    coefficient.fitted ? fmt::format("{:.1f}", to_mib(coefficient.residual)) : "-",
                    coefficient.figures, coefficient.fitted ? "" : "  too few data: preset");
  }
  return out;
}

std::string written_to(const std::string& folder, const std::string& name) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw ConfigError(Problem{folder, "", "", "a folder that can be made", error.message()});
  }
  return (std::filesystem::path(folder) / name).string();
}

po::options_description options() {
  po::options_description options = log_options();
  options.add_options()("from-log",
                        po::value<std::vector<std::string>>()->multitoken()->value_name("FILE"),
                        "logs of one card and engine; - is standard input")(
      "from-probes", po::bool_switch(), "measure on this machine's GPU")(
      "out", po::value<std::string>()->default_value(".")->value_name("DIR"),
      "folder of the calibration file");
  return options;
}

int run(const po::variables_map& values) {
  if (values["from-probes"].as<bool>()) {
    throw ConfigError(Problem{"command line", "--from-probes", "", "--from-log LOG...",
                              "probes are not there yet"});
  }
  if (values.count("from-log") == 0) {
    throw ConfigError(Problem{"command line", "--from-log", "", "at least one log", ""});
  }
  const ExplainOptions given = log_choices(values);
  std::vector<logs::EngineLog> logs;
  for (const std::string& path : values["from-log"].as<std::vector<std::string>>()) {
    logs.push_back(logs::read_log(path));
  }
  Problems problems;
  std::vector<std::string> notes;
  const std::vector<CalibrationSample> samples = samples_of(logs, given, problems, notes);
  if (samples.empty()) {
    problems.raise_if_any();
  }
  for (const Problem& problem : problems.found()) {
    notes.push_back("left out: " + to_string(problem));
  }
  CalibrationFit fit = fit_calibration(samples);
  fit.notes = std::move(notes);
  const OrderedJson json = calibration_json(fit, samples);
  const std::string text = json.dump(2) + "\n";
  const std::string path = written_to(values["out"].as<std::string>(), file_name(fit.calibration));
  write_file_atomically(path, text);
  std::cout << (values["json"].as<bool>() ? text : table(fit) + "Written to " + path + "\n");
  return kFits;
}

}  // namespace

Command calibrate_command() {
  return {.name = "calibrate",
          .purpose = "from logs to a calibration file of one card and engine",
          .synopsis = "oomcast calibrate --from-log LOG... [OPTION...]",
          .about =
              "What one card and engine take beyond the presets, from startup logs, as a\n"
              "file for --calibration.",
          .examples = {{"From two logs of one machine",
                        "oomcast calibrate --from-log a.log b.log --out calibrations"}},
          .options = options,
          .word = "",
          .run = run};
}

}  // namespace oomcast::cli
