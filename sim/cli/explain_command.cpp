#include <iostream>

#include "sim/cli/command.hpp"
#include "sim/core/error.hpp"
#include "sim/logs/log_reader.hpp"
#include "sim/run/explain.hpp"

namespace oomcast::cli {
namespace {

po::options_description options() {
  po::options_description options = log_options();
  options.add_options()("log", po::value<std::string>()->value_name("FILE"),
                        "the log; - is standard input");
  return options;
}

int run(const po::variables_map& values) {
  if (values.count("log") == 0) {
    throw ConfigError(Problem{"command line", "LOG", "", "the log of an engine, or -", ""});
  }
  const ExplainOptions given = log_choices(values);
  const OrderedJson json = explain_json(logs::read_log(values["log"].as<std::string>()), given);
  std::cout << (values["json"].as<bool>()
                    ? json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n"
                    : explain_text(json));
  return shows_failure(json) ? kDoesNotFit : kFits;
}

}  // namespace

Command explain_command() {
  return {.name = "explain",
          .purpose = "an engine's log or out-of-memory text: causes and fixes",
          .synopsis = "oomcast explain LOG [OPTION...]",
          .about =
              "An engine's log or out-of-memory text: where the memory went, logged beside\n"
              "predicted, what ended the run, what to change. Plain, .gz or .zst; - is\n"
              "standard input. What the log does not tell can be given.",
          .examples = {{"Why a server did not start", "oomcast explain vllm.log"},
                       {"From a pipe, with the launch line that the log does not print",
                        "oomcast explain - --launch \"vllm serve Qwen/Qwen3-8B\" < vllm.log"}},
          .options = options,
          .word = "log",
          .most_words = 1,
          .run = run};
}

}  // namespace oomcast::cli
