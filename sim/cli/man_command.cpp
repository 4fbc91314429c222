// The manual page, in the man macros that groff and mandoc both know.
#include <fmt/format.h>

#include <boost/algorithm/string/replace.hpp>
#include <iostream>

#include "sim/cli/command.hpp"

namespace oomcast::cli {
namespace {

// Text that troff takes as it is: no escapes, no control lines, dashes that can be pasted.
std::string plain(std::string text) {
  boost::replace_all(text, "\\", "\\e");
  boost::replace_all(text, "-", "\\-");
  boost::replace_all(text, "'", "\\(aq");
  boost::replace_all(text, "\n.", "\n\\&.");
  return text.empty() || text.front() != '.' ? text : "\\&" + text;
}

std::string option_rows(const po::options_description& options,
                        const po::options_description& told_elsewhere) {
  std::string out;
  for (const auto& option : options.options()) {
    const auto* told = told_elsewhere.find_nothrow(option->long_name(), false);
    if (told != nullptr && told->description() == option->description()) {
      continue;
    }
    const std::string value = value_name(*option);
    out += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", plain("--" + option->long_name()),
                       value.empty() ? "" : " \\fI" + plain(value) + "\\fR",
                       plain(option->description()));
  }
  return out;
}

std::string command_section(const Command& command) {
  std::string out = fmt::format(".SS {}\n.B {}\n.PP\n{}\n", command.name, plain(command.synopsis),
                                plain(command.about));
  out += option_rows(command.options(), deployment_options());
  for (const Example& example : command.examples) {
    out += fmt::format(".PP\n{}:\n.PP\n.nf\n.RS 4\n{}\n.RE\n.fi\n", plain(example.about),
                       plain(example.line));
  }
  return out;
}

constexpr const char* kClosing = R"(.SH EXIT STATUS
.TP
0
Done, and it fits.
.TP
1
A bug in oomcast.
.TP
2
Bad input: what is wrong is on standard error, nothing was written.
.TP
3
Done, and the deployment does not fit or runs out of memory.
.SH ENVIRONMENT
.TP
.B GITHUB_ACTIONS
With
.BR true ,
.B \-\-brief
adds an error annotation where the deployment does not fit.
)";

std::string page() {
  std::string out = fmt::format(
      ".TH OOMCAST 1 {} \"oomcast {}\" \"User Commands\"\n.SH NAME\n"
      "oomcast \\- forecasts the GPU memory of LLM serving over time\n.SH SYNOPSIS\n",
      OOMCAST_RELEASED, OOMCAST_VERSION);
  for (const Command& command : commands()) {
    out += fmt::format("{}.B {}\n", &command == &commands().front() ? "" : ".br\n",
                       plain(command.synopsis));
  }
  out +=
      ".SH DESCRIPTION\n"
      "From a launch line, a model's config.json, the name of a GPU and a trace of requests:\n"
      "what every byte is for at each moment, the KV capacity, when and why memory runs out,\n"
      "and what to change.\n"
      "No GPU and no engine is needed.\n"
      ".SH COMMANDS\n";
  for (const Command& command : commands()) {
    out += command_section(command);
  }
  const po::options_description none;
  return out + ".SH OPTIONS OF A DEPLOYMENT\nOf every command that takes a launch line.\n" +
         option_rows(deployment_options(), none) + kClosing;
}

po::options_description options() {
  po::options_description options("Options");
  options.add_options()("help,h", po::bool_switch(), "show this help");
  return options;
}

int run(const po::variables_map& /*values*/) {
  std::cout << page();
  return kFits;
}

}  // namespace

Command man_command() {
  return {.name = "man",
          .purpose = "the manual page",
          .synopsis = "oomcast man",
          .about = "Prints the manual page for man(1).",
          .examples = {{"Read it", "oomcast man | man -l -"}},
          .options = options,
          .word = "",
          .run = run};
}

}  // namespace oomcast::cli
