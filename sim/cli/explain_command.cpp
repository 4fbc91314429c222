#include <iostream>

#include "models/data.hpp"
#include "sim/cli/command.hpp"
#include "sim/core/error.hpp"
#include "sim/logs/log_reader.hpp"
#include "sim/run/explain.hpp"

namespace oomcast::cli {

int run_explain(const Arguments& arguments) {
  po::options_description options = log_options();
  options.add_options()("log", po::value<std::string>(), "the log; - is standard input");
  po::positional_options_description positional;
  positional.add("log", 1);
  po::variables_map values;
  if (!parse(arguments, options,
             "oomcast explain LOG\n"
             "  An engine's log or out-of-memory text: where the memory went, logged beside\n"
             "  predicted, what ended the run, what to change. Plain, .gz or .zst; - is standard\n"
             "  input. What the log does not tell can be given.\n",
             values, positional)) {
    return kFits;
  }
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

}  // namespace oomcast::cli
