#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "sim/cli/command.hpp"

namespace oomcast::cli {
namespace {

po::options_description options() {
  po::options_description options("Options");
  options.add_options()("command", po::value<std::string>()->value_name("COMMAND"),
                        "the command to tell about")("help,h", po::bool_switch(), "show this help");
  return options;
}

int run(const po::variables_map& values) {
  std::cout << (values.count("command") == 0
                    ? overview()
                    : help_text(find_command(values["command"].as<std::string>())));
  return kFits;
}

}  // namespace

std::string overview() {
  std::size_t widest = 0;
  for (const Command& command : commands()) {
    widest = std::max(widest, command.name.size());
  }
  std::string out = "oomcast forecasts the GPU memory of LLM serving over time.\n\n";
  for (const Command& command : commands()) {
    out += fmt::format("  oomcast {:<{}}  {}\n", command.name, widest, command.purpose);
  }
  return out +
         "\n`oomcast help COMMAND` shows options and examples. Exit codes: 0 it fits, 2 bad "
         "input,\n"
         "3 it does not fit or runs out of memory, 1 a bug in oomcast.\n";
}

std::string help_text(const Command& command) {
  std::ostringstream options;
  options << command.options();
  std::string out = fmt::format("{}\n\n{}\n\n{}", command.synopsis, command.about, options.str());
  for (const Example& example : command.examples) {
    out += fmt::format("\n{}:\n  {}\n", example.about, example.line);
  }
  return out;
}

Command help_command() {
  return {.name = "help",
          .purpose = "options and examples of a command",
          .synopsis = "oomcast help [COMMAND]",
          .about = "Shows what there is, or all about one command.",
          .examples = {{"All about replays", "oomcast help replay"}},
          .options = options,
          .word = "command",
          .most_words = 1,
          .run = run};
}

}  // namespace oomcast::cli
