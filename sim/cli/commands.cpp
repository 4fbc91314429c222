#include <fmt/format.h>

#include <algorithm>

#include "sim/cli/command.hpp"
#include "sim/core/error.hpp"

namespace oomcast::cli {

const std::vector<Command>& commands() {
  static const std::vector<Command> kCommands = {
      plan_command(),   replay_command(),  sweep_command(),   limit_command(),
      report_command(), compare_command(), explain_command(), calibrate_command(),
      list_command(),   schema_command(),  help_command(),    completions_command(),
      man_command(),
  };
  return kCommands;
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    names.push_back(command.name);
  }
  return names;
}

const Command& find_command(const std::string& name) {
  const auto found = std::find_if(commands().begin(), commands().end(),
                                  [&name](const Command& command) { return command.name == name; });
  if (found == commands().end()) {
    throw ConfigError(Problem{"command line", "command", name,
                              fmt::format("one of: {}", fmt::join(command_names(), ", ")),
                              did_you_mean(name, command_names())});
  }
  return *found;
}

}  // namespace oomcast::cli
