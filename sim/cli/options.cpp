#include <fmt/format.h>

#include <algorithm>
#include <boost/algorithm/string/classification.hpp>
#include <boost/algorithm/string/split.hpp>
#include <boost/algorithm/string/trim.hpp>

#include "models/data.hpp"
#include "models/gpu.hpp"
#include "models/link.hpp"
#include "sim/allocator/device.hpp"
#include "sim/cli/command.hpp"
#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"
#include "sim/launch/launch.hpp"
#include "sim/report/schemas.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::cli {
namespace {

std::vector<std::string> names_of(const po::options_description& options) {
  std::vector<std::string> names;
  for (const auto& option : options.options()) {
    names.push_back("--" + option->long_name());
  }
  return names;
}

void refuse_other_choices(const Command& command, const po::options_description& options,
                          const po::variables_map& values) {
  Problems problems;
  for (const auto& option : options.options()) {
    const std::vector<std::string> names = choices(value_name(*option));
    const auto given = values.find(option->long_name());
    if (names.empty() || given == values.end()) {
      continue;
    }
    const auto& text = given->second.as<std::string>();
    if (std::find(names.begin(), names.end(), text) == names.end()) {
      const std::string& name = option->long_name();
      problems.add({kCommandLine, name == command.word ? command.name : "--" + name, text,
                    fmt::format("one of: {}", fmt::join(names, ", ")), did_you_mean(text, names)});
    }
  }
  problems.raise_if_any();
}

}  // namespace

std::optional<Bytes> bytes_option(const po::variables_map& values, const char* name,
                                  Problems& problems) {
  if (values.count(name) == 0) {
    return std::nullopt;
  }
  const auto text = values[name].as<std::string>();
  const auto bytes = parse_bytes(text);
  if (!bytes) {
    problems.add(
        {kCommandLine, std::string("--") + name, text, "a size like 79.19GiB or 1.5g", ""});
  } else if (*bytes<kMiB&& * bytes> Bytes{0}) {
    problems.add({kCommandLine, std::string("--") + name, text, "a size of a MiB or more",
                  "without a unit it is bytes: did you mean " + text + "GiB?"});
  }
  return bytes;
}

po::options_description deployment_options() {
  po::options_description options("Deployment");
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  options.add_options()("launch", text("LINE"),
                        "engine launch line as pasted into a shell, or @file")(
      "gpu", text("GPU"), "card, e.g. H100-80GB (see: oomcast list gpus)")(
      "engine-version", text("VERSION")->default_value("", ""),
      "engine version; default: image tag in the line, else the newest known")(
      "model-config", text("FILE")->default_value("", ""),
      "config.json or its folder; default: the catalog, by the model in the line")(
      "other-gpu-use", text("SIZE"), "memory held by other processes, e.g. 1.5GiB")(
      "gpu-total", text("SIZE"), "total memory the card really shows, e.g. 79.19GiB")(
      "free-at-start", text("SIZE"), "free memory before the start, e.g. 78.6GiB")(
      "assume", po::value<std::vector<std::string>>()->composing()->value_name("NAME=VALUE"),
      "take a quantity as given: available_kv_gib=X, non_torch_gib=X, activation_peak_gib=X, "
      "graph_gib=X, avail_after_load_gib=X, free_for_kv_gib=X, cache_pool_gib=X, "
      "host_memory_gib=X, driver=535 (NVIDIA's), compile_cache=warm, expert_routing=zipf:SKEW, "
      "spec_acceptance=P "
      "(repeatable)")("calibration", text("FILE"), "calibration file of this card")(
      "data", text("DIR"), "folder whose files replace the built-in data")(
      "seed", po::value<std::uint64_t>()->default_value(1)->value_name("N"),
      "seed of everything random")("json", po::bool_switch(), "print JSON")(
      "help,h", po::bool_switch(), "show this help");
  return options;
}

std::string value_name(const po::option_description& option) {
  if (option.semantic()->max_tokens() == 0) {
    return "";
  }
  const std::string shown = option.semantic()->name();  // "FILE", or "FILE (=default)"
  return shown.substr(0, shown.find(' '));
}

std::vector<std::string> choices(const std::string& value_name) {
  std::vector<std::string> names;
  if (value_name.find('|') != std::string::npos) {
    boost::split(names, value_name, [](char letter) { return letter == '|'; });
  }
  return names;
}

std::vector<std::string> offered(const std::string& value_name) {
  if (value_name == "COMMAND") {
    return command_names();
  }
  if (value_name == "SCHEMA") {
    return schemas::names();
  }
  std::vector<std::string> names = choices(value_name);
  if (value_name == "GPU") {
    for (const std::string& gpu : models::gpu_names()) {
      const std::vector<std::string> aliases = models::find_gpu(gpu).aliases;
      std::copy_if(aliases.begin(), aliases.end(), std::back_inserter(names),
                   [](const std::string& name) { return name.find(' ') == std::string::npos; });
    }
    std::sort(names.begin(), names.end());
  } else if (value_name == "LINK") {
    names = models::link_names();
  } else if (value_name == "FORMAT") {
    for (const workloads::TraceFormat& format : workloads::trace_formats()) {
      names.emplace_back(format.name);
    }
  }
  return names;
}

std::string first_clause(const std::string& description) {
  return description.substr(0, std::min(description.find(';'), description.find(" (")));
}

std::optional<po::variables_map> parse(const Command& command, const Arguments& arguments) {
  const po::options_description options = command.options();
  po::positional_options_description positional;
  if (command.most_words != 0) {
    positional.add(command.word.c_str(), command.most_words);
  }
  po::variables_map values;
  try {
    const auto style =
        po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
    po::store(po::command_line_parser(arguments)
                  .options(options)
                  .style(style)
                  .positional(positional)
                  .run(),
              values);
    po::notify(values);
  } catch (const po::unknown_option& error) {
    throw ConfigError(Problem{kCommandLine, "", error.get_option_name(),
                              "an option of this command",
                              did_you_mean(error.get_option_name(), names_of(options))});
  } catch (const po::too_many_positional_options_error&) {
    throw ConfigError(Problem{kCommandLine, "", fmt::format("{}", fmt::join(arguments, " ")),
                              command.synopsis, "quote a launch line as one word"});
  } catch (const po::error_with_option_name& error) {
    const auto* option = options.find_nothrow(
        boost::trim_left_copy_if(error.get_option_name(), boost::is_any_of("-")), false);
    const std::string value = option == nullptr ? "" : value_name(*option);
    throw ConfigError(Problem{kCommandLine, error.get_option_name(), "",
                              value.empty() ? "no value" : "one value, " + value, error.what()});
  } catch (const po::error& error) {
    throw ConfigError(Problem{kCommandLine, "", error.what(), "valid options",
                              "see: oomcast help " + command.name});
  }
  if (values["help"].as<bool>()) {
    return std::nullopt;
  }
  refuse_other_choices(command, options, values);
  if (values.count("brief") != 0 && values["brief"].as<bool>() && values["json"].as<bool>()) {
    throw ConfigError(Problem{kCommandLine, "--brief", "", "either --brief or --json", ""});
  }
  return values;
}

void take_data_folder(const po::variables_map& values) {
  if (values.count("data") != 0) {
    models::set_data_folder(values["data"].as<std::string>());
  }
}

std::unique_ptr<StepTimeModel> step_times_of(const DeploymentChoice& choice) {
  return choice.calibration && choice.calibration->step_time
             ? make_measured(*choice.calibration->step_time)
             : step_time_model(choice.deployment);
}

DeploymentChoice resolve_deployment(const po::variables_map& values) {
  Problems problems;
  std::string line;
  if (values.count("launch") == 0) {
    problems.add({kCommandLine, "--launch", "", "the engine's launch line",
                  "e.g. --launch \"vllm serve meta-llama/Llama-3.1-8B-Instruct\""});
  } else {
    line = values["launch"].as<std::string>();
  }
  return resolve_deployment(values, line, "gpu", problems);
}

DeploymentChoice resolve_deployment(const po::variables_map& values, const std::string& line,
                                    const char* gpu, Problems& problems) {
  take_data_folder(values);
  DeploymentInput input;
  input.launch_line = launch::launch_text(line);
  if (values.count(gpu) == 0) {
    problems.add({kCommandLine, std::string("--") + gpu, "", "a card", "see: oomcast list gpus"});
  } else {
    input.gpu = values[gpu].as<std::string>();
  }
  input.engine_version = values["engine-version"].as<std::string>();
  input.model_config = values["model-config"].as<std::string>();
  input.card.other_use = bytes_option(values, "other-gpu-use", problems).value_or(Bytes{0});
  input.card.total = bytes_option(values, "gpu-total", problems);
  input.card.free_at_start = bytes_option(values, "free-at-start", problems);
  if (input.card.total && *input.card.total <= Bytes{0}) {
    problems.add({kCommandLine, "--gpu-total", "0", "more than nothing", ""});
  }
  if (input.card.total && *input.card.total > allocator::kMaxDeviceBytes) {
    problems.add({kCommandLine, "--gpu-total", values["gpu-total"].as<std::string>(),
                  "the memory of one GPU, less than 1 TiB", ""});
  }
  if (values.count("assume") != 0) {
    input.assume = values["assume"].as<std::vector<std::string>>();
  }
  problems.raise_if_any();
  DeploymentChoice choice{resolve_input(input), std::nullopt};
  if (values.count("calibration") != 0) {
    choice.calibration = read_calibration(values["calibration"].as<std::string>());
    apply(*choice.calibration, choice.deployment.common());
  }
  return choice;
}

}  // namespace oomcast::cli
