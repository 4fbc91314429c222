// Scripts that are whole in themselves: completing a word starts no program.
#include <fmt/format.h>

#include <boost/algorithm/string/join.hpp>
#include <boost/algorithm/string/replace.hpp>
#include <iostream>

#include "sim/cli/command.hpp"
#include "sim/core/error.hpp"

namespace oomcast::cli {
namespace {

using boost::algorithm::join;
using boost::algorithm::replace_all_copy;

// One option as a shell sees it.
struct Shown {
  std::string name;   // without dashes
  std::string about;  // one line
  std::string value;  // name of its value; empty for a switch
  bool repeats = false;
  bool several = false;  // takes the words that follow
};

std::vector<Shown> shown_options(const Command& command) {
  std::vector<Shown> all;
  const po::options_description options = command.options();  // outlives the rows of it
  for (const auto& option : options.options()) {
    const auto& semantic = *option->semantic();
    all.push_back({option->long_name(), first_clause(option->description()), value_name(*option),
                   semantic.is_composing(), semantic.max_tokens() > 1});
  }
  return all;
}

// The value of the words that have no name; empty where there are none.
std::string word_value(const Command& command) {
  for (const Shown& option : shown_options(command)) {
    if (command.most_words != 0 && option.name == command.word) {
      return option.value;
    }
  }
  return "";
}

bool is_path(const std::string& value) { return value == "FILE" || value == "DIR"; }

// In single quotes, as every shell here reads them.
std::string in_quotes(const std::string& text) {
  return "'" + replace_all_copy(text, "'", R"('\'')") + "'";
}

// ---- bash ---------------------------------------------------------------------------------------

std::string bash_action(const std::string& value) {
  if (is_path(value)) {
    return value == "DIR" ? "_oomcast_paths -d" : "_oomcast_paths -f";
  }
  const std::vector<std::string> names = offered(value);
  return names.empty() ? ":" : "_oomcast_names " + in_quotes(join(names, " "));
}

constexpr const char* kBashHead = R"(# bash completion of oomcast, made by: oomcast completions bash
_oomcast_names() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
_oomcast_paths() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}
_oomcast() {
  local cur=${COMP_WORDS[COMP_CWORD]} option='' i word
  COMPREPLY=()
)";

// The option whose value is being typed: the word before, or the one before `=`, which bash takes
// for a word of its own; or an option further back that takes several.
constexpr const char* kBashOption = R"(  local before=${COMP_WORDS[COMP_CWORD - 1]}
  if [[ $cur == = ]]; then
    cur='' option=$before
  elif [[ $before == = ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]}
  elif [[ $before == -* ]]; then
    option=$before
  else
    for ((i = COMP_CWORD - 1; i > 1; --i)); do
      word=${COMP_WORDS[i]}
      if [[ $word == -?* ]]; then
        [[ $several == *" $word "* ]] && option=$word
        break
      fi
    done
  fi
)";

std::string bash_script() {
  std::string out = kBashHead;
  out += fmt::format("  if ((COMP_CWORD == 1)); then\n    _oomcast_names {}\n    return\n  fi\n",
                     in_quotes(join(command_names(), " ") + " --help --version"));
  std::string several = " ";
  std::string cases;
  for (const Command& command : commands()) {
    std::vector<std::string> names;
    cases += fmt::format("    {})\n      case $option in\n", command.name);
    for (const Shown& option : shown_options(command)) {
      names.push_back("--" + option.name);
      if (!option.value.empty()) {
        cases += fmt::format("        --{}) {} ;;\n", option.name, bash_action(option.value));
      }
      if (option.several) {
        several += "--" + option.name + " ";
      }
    }
    const std::string word = word_value(command);
    cases += fmt::format("        *) if [[ $cur == -* ]]; then _oomcast_names {}; else {}; fi ;;\n",
                         in_quotes(join(names, " ")), bash_action(word));
    cases += "      esac ;;\n";
  }
  return out + "  local several=" + in_quotes(several) + "\n" + kBashOption +
         "  case ${COMP_WORDS[1]} in\n" + cases + "  esac\n}\ncomplete -F _oomcast oomcast\n";
}

// ---- zsh ----------------------------------------------------------------------------------------

std::string zsh_action(const std::string& value) {
  if (is_path(value)) {
    return value == "DIR" ? "_files -/" : "_files";
  }
  const std::vector<std::string> names = offered(value);
  return names.empty() ? " " : "(" + join(names, " ") + ")";
}

// Inside a specification of _arguments, brackets and colons are its own.
std::string zsh_text(std::string text) {
  for (const char* special : {"\\", "[", "]", ":"}) {
    text = replace_all_copy(text, special, std::string("\\") + special);
  }
  return text;
}

std::string zsh_script() {
  std::string out =
      "#compdef oomcast\n# zsh completion of oomcast, made by: oomcast completions zsh\n"
      "_oomcast() {\n  local -a commands=(\n";
  for (const Command& command : commands()) {
    out += "    " + in_quotes(command.name + ":" + zsh_text(command.purpose)) + "\n";
  }
  out +=
      "  )\n  if ((CURRENT == 2)); then\n    _describe command commands\n    return\n  fi\n"
      "  local command=$words[2]\n  shift words\n  ((CURRENT--))\n  case $command in\n";
  for (const Command& command : commands()) {
    out += fmt::format("    {})\n      _arguments", command.name);
    for (const Shown& option : shown_options(command)) {
      std::string spec = fmt::format("{}--{}{}[{}]", option.repeats ? "*" : "", option.name,
                                     option.value.empty() ? "" : "=", zsh_text(option.about));
      if (!option.value.empty()) {
        spec += fmt::format("{}:{}:{}", option.several ? ":*" : "", zsh_text(option.value),
                            zsh_action(option.value));
      }
      out += " \\\n        " + in_quotes(spec);
    }
    if (const std::string word = word_value(command); !word.empty()) {
      out += " \\\n        " + in_quotes(fmt::format("*:{}:{}", zsh_text(word), zsh_action(word)));
    }
    out += " ;;\n";
  }
  // Sourced it registers itself; found in a function folder it is called.
  return out +
         "  esac\n}\n"
         "if [ \"$funcstack[1]\" = _oomcast ]; then\n  _oomcast \"$@\"\nelse\n"
         "  compdef _oomcast oomcast\nfi\n";
}

// ---- fish ---------------------------------------------------------------------------------------

std::string fish_action(const std::string& value) {
  if (is_path(value)) {
    return value == "DIR" ? " -x -a '(__fish_complete_directories)'" : " -r -F";
  }
  const std::vector<std::string> names = offered(value);
  return names.empty() ? " -x" : " -x -a " + in_quotes(join(names, " "));
}

std::string fish_script() {
  std::string out =
      "# fish completion of oomcast, made by: oomcast completions fish\ncomplete -c oomcast -f\n";
  for (const Command& command : commands()) {
    out += fmt::format("complete -c oomcast -n __fish_use_subcommand -a {} -d {}\n", command.name,
                       in_quotes(command.purpose));
  }
  for (const Command& command : commands()) {
    const std::string line =
        "complete -c oomcast -n " +
        in_quotes("test (commandline -opc)[2] = " + command.name + " 2>/dev/null");
    for (const Shown& option : shown_options(command)) {
      out += fmt::format("{} -l {}{} -d {}\n", line, option.name,
                         option.value.empty() ? "" : fish_action(option.value),
                         in_quotes(option.about));
    }
    if (const std::string word = word_value(command); is_path(word)) {
      out += line + " -F\n";
    } else if (!word.empty()) {
      out += line + " -a " + in_quotes(join(offered(word), " ")) + "\n";
    }
  }
  return out;
}

po::options_description options() {
  po::options_description options("Options");
  options.add_options()("shell", po::value<std::string>()->value_name("bash|zsh|fish"),
                        "the shell")("help,h", po::bool_switch(), "show this help");
  return options;
}

int run(const po::variables_map& values) {
  if (values.count("shell") == 0) {
    throw ConfigError(Problem{"command line", "completions", "", "one of: bash, zsh, fish", ""});
  }
  const auto& shell = values["shell"].as<std::string>();
  std::cout << (shell == "bash" ? bash_script() : shell == "zsh" ? zsh_script() : fish_script());
  return kFits;
}

}  // namespace

Command completions_command() {
  return {.name = "completions",
          .purpose = "completion script of a shell",
          .synopsis = "oomcast completions bash|zsh|fish",
          .about = "Prints a script that completes commands, options, files, cards and formats.",
          .examples = {{"For this bash", "source <(oomcast completions bash)"},
                       {"For every fish",
                        "oomcast completions fish > ~/.config/fish/completions/oomcast.fish"}},
          .options = options,
          .word = "shell",
          .most_words = 1,
          .run = run};
}

}  // namespace oomcast::cli
