#include "models/data.hpp"
#include "sim/allocator/device.hpp"
#include "sim/cli/command.hpp"
#include "sim/launch/launch.hpp"

namespace oomcast::cli {

po::options_description log_options() {
  po::options_description options("What the log does not tell");
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  options.add_options()("launch", text("LINE"),
                        "engine launch line, or @file; default: the flags that the log prints")(
      "gpu", text("GPU")->default_value("", ""),
      "card; default: as the log names it or its memory tells")(
      "engine-version", text("VERSION")->default_value("", ""),
      "engine version; default: as the log says, else by its wording")(
      "model-config", text("FILE")->default_value("", ""),
      "config.json or its folder; default: the catalog")("other-gpu-use", text("SIZE"),
                                                         "memory held by other processes")(
      "gpu-total", text("SIZE"), "total memory the card really shows")(
      "free-at-start", text("SIZE"), "free memory before the start")(
      "assume", po::value<std::vector<std::string>>()->composing()->value_name("NAME=VALUE"),
      "take a quantity as given (see: oomcast plan --help)")(
      "data", text("DIR"), "folder whose files replace the built-in data")(
      "json", po::bool_switch(), "print JSON")("help,h", po::bool_switch(), "show this help");
  return options;
}

ExplainOptions log_choices(const po::variables_map& values) {
  if (values.count("data") != 0) {
    models::set_data_folder(values["data"].as<std::string>());
  }
  Problems problems;
  ExplainOptions given;
  if (values.count("launch") != 0) {
    given.launch_line = launch::launch_text(values["launch"].as<std::string>());
  }
  given.gpu = values["gpu"].as<std::string>();
  given.engine_version = values["engine-version"].as<std::string>();
  given.model_config = values["model-config"].as<std::string>();
  given.card.other_use = bytes_option(values, "other-gpu-use", problems).value_or(Bytes{0});
  given.card.total = bytes_option(values, "gpu-total", problems);
  given.card.free_at_start = bytes_option(values, "free-at-start", problems);
  if (given.card.total &&
      (*given.card.total <= Bytes{0} || *given.card.total > allocator::kMaxDeviceBytes)) {
    problems.add({"command line", "--gpu-total", values["gpu-total"].as<std::string>(),
                  "the memory of one GPU, less than 1 TiB", ""});
  }
  if (values.count("assume") != 0) {
    given.assume = values["assume"].as<std::vector<std::string>>();
  }
  problems.raise_if_any();
  return given;
}

}  // namespace oomcast::cli
