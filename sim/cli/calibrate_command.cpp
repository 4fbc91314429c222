#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <utility>

#include "models/data.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/probe_program.hpp"
#include "sim/core/atomic_output.hpp"
#include "sim/core/error.hpp"
#include "sim/logs/log_reader.hpp"
#include "sim/run/calibration_json.hpp"
#include "sim/run/plan_changes.hpp"

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

// Samples recorded before, or measured now and kept in the folder `out`.
ProbeCalibration probed(const po::variables_map& values) {
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
    ProbeRun run;
    if (values.count("probes") != 0) {
      run.program = values["probes"].as<std::string>();
    }
    run.allow_shared = values["allow-shared"].as<bool>();
    run.limit = std::chrono::seconds(values["time-limit"].as<std::int64_t>());
    const std::string text = run_probes(run);
    runs.push_back(fit::parse_probe_samples(text, "samples.json"));
    fit::ProbeSamples& measured = runs.back();
    measured.source =
        written_to(values["out"].as<std::string>(),
                   as_file_name(fmt::format("samples-{}-{}", measured.card.gpu, measured.date)));
    write_file_atomically(measured.source, text);
  }
  return calibrate_from_probes(std::move(runs));
}

struct FromLogs {
  std::vector<logs::EngineLog> logs;
  std::vector<CalibrationSample> samples;  // refer to the logs
  CalibrationFit fit;
};

FromLogs fitted_logs(const po::variables_map& values, const Calibration& known) {
  const ExplainOptions given = log_choices(values);
  FromLogs out;
  for (const std::string& path : words_of(values, "from-log")) {
    out.logs.push_back(logs::read_log(path));
  }
  Problems problems;
  std::vector<std::string> notes;
  out.samples = samples_of(out.logs, given, problems, notes);
  if (out.samples.empty()) {
    problems.raise_if_any();
  }
  for (const Problem& problem : problems.found()) {
    notes.push_back("left out: " + to_string(problem));
  }
  out.fit = fit_calibration(out.samples, known);
  out.fit.notes = std::move(notes);
  return out;
}

// What the file changes in plans on its card.
std::string changes(const po::variables_map& values, const Calibration& calibration) {
  std::string out;
  for (const std::string& line : words_of(values, "plan-launch")) {
    DeploymentInput input;
    input.launch_line = launch::launch_text(line);
    input.gpu = calibration.gpu;
    input.engine_version = values["engine-version"].as<std::string>();
    input.model_config = values["model-config"].as<std::string>();
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

int run(const po::variables_map& values) {
  check_choices(values);
  if (values.count("data") != 0) {
    models::set_data_folder(values["data"].as<std::string>());
  }
  std::optional<ProbeCalibration> probes;
  if (values["from-probes"].as<bool>()) {
    probes = probed(values);
  }
  std::optional<FromLogs> logs;
  if (values.count("from-log") != 0) {
    logs = fitted_logs(values, probes ? probes->calibration : Calibration{});
  }
  const OrderedJson json = calibration_json({.logs = logs ? &logs->fit : nullptr,
                                             .samples = logs ? &logs->samples : nullptr,
                                             .probes = probes ? &*probes : nullptr});
  const std::string text = json.dump(2) + "\n";
  const std::string name = file_name(logs ? logs->fit.calibration : probes->calibration);
  // Plans first: a launch line that is wrong leaves nothing behind.
  const std::string changed = changes(values, parse_calibration(text, name));
  const std::string path = written_to(values["out"].as<std::string>(), name);
  write_file_atomically(path, text);
  if (values["json"].as<bool>()) {
    std::cout << text;
    return kFits;
  }
  std::cout << (probes ? probe_table(*probes) : "") << (logs ? table(logs->fit) : "")
            << "Written to " << path << "\n"
            << changed;
  return kFits;
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
