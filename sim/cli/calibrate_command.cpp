#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>

#include "models/data.hpp"
#include "models/gpu.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/probe_program.hpp"
#include "sim/core/atomic_output.hpp"
#include "sim/core/error.hpp"
#include "sim/logs/log_reader.hpp"
#include "sim/run/calibration_json.hpp"
#include "sim/run/plan_changes.hpp"

namespace oomcast::cli {
namespace {

namespace fs = std::filesystem;

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

std::string as_file_name(std::string name) {
  for (char& letter : name) {
    const bool kept = std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '.';
    letter = kept ? letter : '-';
  }
  return name + ".json";
}

std::string file_name(const Calibration& calibration) {
  return as_file_name(calibration.engine ? fmt::format("calibration-{}-{}-{}", calibration.gpu,
                                                       launch::to_string(*calibration.engine),
                                                       calibration.engine_version)
                                         : fmt::format("calibration-{}", calibration.gpu));
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

// A folder that files can be put into, made before anything is measured for it. Goes again, with
// what was made above it, if nothing was put there.
class FilesFolder {
 public:
  explicit FilesFolder(std::string path) : path_(std::move(path)) {
    std::error_code error;
    for (fs::path at = fs::path(path_); !at.empty() && !fs::exists(at, error);
         at = at.parent_path()) {
      made_.push_back(at);
    }
    fs::create_directories(path_, error);
    if (error) {
      remove_made();
      throw ConfigError(Problem{path_, "", "", "a folder that can be made", error.message()});
    }
    try {
      const AtomicFile trial(file("calibration"));
    } catch (const ConfigError&) {
      remove_made();
      throw;
    }
  }
  ~FilesFolder() { remove_made(); }
  FilesFolder(const FilesFolder&) = delete;
  FilesFolder& operator=(const FilesFolder&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const {
    return (fs::path(path_) / name).string();
  }

 private:
  // Folders with something in them stay: remove() refuses them.
  void remove_made() const {
    std::error_code error;
    for (const fs::path& at : made_) {
      fs::remove(at, error);
    }
  }

  std::string path_;
  std::vector<fs::path> made_;  // innermost first
};

po::options_description options() {
  po::options_description options = log_options();
  const auto files = [](const char* name) {
    return po::value<std::vector<std::string>>()->multitoken()->value_name(name);
  };
  options.add_options()("from-log", files("FILE"),
                        "logs of one card and engine; - is standard input")(
      "from-probes", po::bool_switch(), "measure on this machine's GPU")(
      "replay-samples", files("FILE"),
      "with --from-probes: samples that probes recorded, instead of measuring")(
      "allow-shared", po::bool_switch(),
      "measure although others use the card, or on a part of one (MIG)")(
      "probes", po::value<std::string>()->value_name("FILE"),
      "program of the probes; default: beside oomcast, else built")(
      "time-limit", po::value<std::int64_t>()->default_value(300)->value_name("SECONDS"),
      "of the probes")("plan-launch", files("LINE"),
                       "launch lines, or @files, whose plans show what the calibration changes")(
      "out", po::value<std::string>()->default_value(".")->value_name("DIR"),
      "folder of the calibration file, and of samples measured now");
  return options;
}

std::vector<std::string> words_of(const po::variables_map& values, const char* name) {
  return values.count(name) == 0 ? std::vector<std::string>{}
                                 : values[name].as<std::vector<std::string>>();
}

fit::ProbeSamples measured(const po::variables_map& values, const FilesFolder& folder) {
  ProbeRun run;
  if (values.count("probes") != 0) {
    run.program = values["probes"].as<std::string>();
  }
  run.allow_shared = values["allow-shared"].as<bool>();
  run.limit = std::chrono::seconds(values["time-limit"].as<std::int64_t>());
  const std::string text = run_probes(run);
  fit::ProbeSamples samples =
      fit::parse_probe_samples(text, "samples of " + run.program.value_or("oomcast-probes"));
  samples.source =
      folder.file(as_file_name(fmt::format("samples-{}-{}", samples.card.gpu, samples.date)));
  write_file_atomically(samples.source, text);
  return samples;
}

// Samples recorded before, or measured now and kept in the folder whatever becomes of them.
ProbeCalibration probed(const po::variables_map& values, const FilesFolder& folder) {
  std::vector<fit::ProbeSamples> runs;
  Problems problems;
  for (const std::string& path : words_of(values, "replay-samples")) {
    try {
      runs.push_back(fit::read_probe_samples(path));
    } catch (const ConfigError& error) {
      problems.take(error);
    }
  }
  problems.raise_if_any();
  if (runs.empty()) {
    runs.push_back(measured(values, folder));
  }
  return calibrate_from_probes(std::move(runs), values["allow-shared"].as<bool>());
}

struct FromLogs {
  std::vector<logs::EngineLog> logs;
  std::vector<CalibrationSample> samples;  // refer to the logs
  std::vector<std::string> notes;
};

FromLogs read_logs(const po::variables_map& values) {
  const ExplainOptions given = log_choices(values);
  FromLogs out;
  for (const std::string& path : words_of(values, "from-log")) {
    out.logs.push_back(logs::read_log(path));
  }
  Problems problems;
  out.samples = samples_of(out.logs, given, problems, out.notes);
  if (out.samples.empty()) {
    problems.raise_if_any();
  }
  for (const Problem& problem : problems.found()) {
    out.notes.push_back("left out: " + to_string(problem));
  }
  return out;
}

CalibrationFit fitted(const FromLogs& logs, const Calibration& known) {
  CalibrationFit fit = fit_calibration(logs.samples, known);
  fit.notes = logs.notes;
  return fit;
}

// The launch lines that are to show what changes, on a card.
std::vector<DeploymentInput> shown_plans(const po::variables_map& values, const std::string& gpu) {
  std::vector<DeploymentInput> out;
  for (const std::string& line : words_of(values, "plan-launch")) {
    DeploymentInput input;
    input.launch_line = launch::launch_text(line);
    input.gpu = gpu;
    input.engine_version = values["engine-version"].as<std::string>();
    input.model_config = values["model-config"].as<std::string>();
    out.push_back(std::move(input));
  }
  return out;
}

// Which card it is going to be, the measurement tells: refused before it is a line that none takes.
void check_shown_plans(const po::variables_map& values) {
  for (DeploymentInput input : shown_plans(values, "")) {
    std::optional<ConfigError> why;
    for (const std::string& gpu : models::gpu_names()) {
      input.gpu = gpu;
      try {
        resolve_input(input);
        why.reset();
        break;
      } catch (const ConfigError& error) {
        why = error;
      }
    }
    if (why) {
      throw ConfigError(*why);
    }
  }
}

// What the file changes in plans on its card.
std::string changes(const po::variables_map& values, const Calibration& calibration) {
  std::string out;
  for (const DeploymentInput& input : shown_plans(values, calibration.gpu)) {
    const AnyDeployment presets = resolve_input(input);
    AnyDeployment calibrated = presets;
    apply(calibration, calibrated.common());
    out += "\n" + input.launch_line + "\n" +
           plan_changes_text(
               plan_changes_json(start(presets), start(std::move(calibrated)), calibration.source));
  }
  return out;
}

void check_choices(const po::variables_map& values) {
  Problems problems;
  const bool probes = values["from-probes"].as<bool>();
  if (!probes && values.count("from-log") == 0) {
    problems.add({"command line", "--from-log", "", "at least one log, or --from-probes", ""});
  }
  if (!probes && values.count("replay-samples") != 0) {
    problems.add({"command line", "--replay-samples", "", "--from-probes beside it", ""});
  }
  const auto limit = values["time-limit"].as<std::int64_t>();
  constexpr std::int64_t kDay = 86'400;
  if (limit < 1 || limit > kDay) {
    problems.add({"command line", "--time-limit", std::to_string(limit), "1 to 86400 seconds", ""});
  }
  problems.raise_if_any();
}

int calibrate(const po::variables_map& values) {
  check_choices(values);
  if (values.count("data") != 0) {
    models::set_data_folder(values["data"].as<std::string>());
  }
  // What can be wrong is found before minutes go into measuring.
  check_shown_plans(values);
  std::optional<FromLogs> logs;
  if (values.count("from-log") != 0) {
    logs = read_logs(values);
  }
  const FilesFolder folder(values["out"].as<std::string>());
  std::optional<ProbeCalibration> probes;
  if (values["from-probes"].as<bool>()) {
    probes = probed(values, folder);
  }
  std::optional<CalibrationFit> fit;
  if (logs) {
    fit = fitted(*logs, probes ? probes->calibration : Calibration{});
  }
  const OrderedJson json = calibration_json({.logs = fit ? &*fit : nullptr,
                                             .samples = logs ? &logs->samples : nullptr,
                                             .probes = probes ? &*probes : nullptr});
  const std::string text = json.dump(2) + "\n";
  const std::string name = file_name(fit ? fit->calibration : probes->calibration);
  // Plans first: a launch line that is wrong leaves no calibration behind.
  const std::string changed = changes(values, parse_calibration(text, name));
  const std::string path = folder.file(name);
  write_file_atomically(path, text);
  if (values["json"].as<bool>()) {
    std::cout << text;
    return kFits;
  }
  std::cout << (probes ? probe_table(*probes) : "") << (fit ? table(*fit) : "") << "Written to "
            << path << "\n"
            << changed;
  return kFits;
}

int run(const po::variables_map& values) {
  int signal = 0;
  try {
    return calibrate(values);
  } catch (const StoppedBySignal& stopped) {
    signal = stopped.signal;
  }
  return std::raise(signal);
}

}  // namespace

Command calibrate_command() {
  return {.name = "calibrate",
          .purpose = "from logs or probes of a GPU to a calibration file",
          .synopsis = "oomcast calibrate --from-log LOG... | --from-probes [OPTION...]",
          .about =
              "What one card takes beyond the presets, as a file for --calibration: from startup\n"
              "logs of an engine, from probes run on this machine's GPU, or both. What a probe\n"
              "measures to the byte is taken before what a log rounds.",
          .examples = {{"From two logs of one machine",
                        "oomcast calibrate --from-log a.log b.log --out calibrations"},
                       {"From samples that probes recorded, with what they change in a plan",
                        "oomcast calibrate --from-probes --replay-samples samples.json "
                        "--plan-launch \"vllm serve Qwen/Qwen3-8B\""}},
          .options = options,
          .word = "",
          .run = run};
}

}  // namespace oomcast::cli
