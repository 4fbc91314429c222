#include <fmt/format.h>

#include <boost/algorithm/string/replace.hpp>
#include <cstdlib>

#include "sim/cli/command.hpp"

namespace oomcast::cli {
namespace {

// A command to the runner that shows the text beside the step that failed.
std::string annotation(std::string text) {
  boost::replace_all(text, "%", "%25");
  boost::replace_all(text, "\r", "%0D");
  boost::replace_all(text, "\n", "%0A");
  return "::error title=oomcast::" + text;
}

bool in_github_actions() {
  const char* value = std::getenv("GITHUB_ACTIONS");
  return value != nullptr && std::string(value) == "true";
}

}  // namespace

void add_brief(po::options_description& options) {
  options.add_options()("brief", po::bool_switch(), "print the outcome in one line");
}

std::string chosen_output(const po::variables_map& values, bool fits, const std::string& json,
                          const std::string& brief, const std::string& text) {
  if (values["json"].as<bool>()) {
    return json;
  }
  if (!values["brief"].as<bool>()) {
    return text;
  }
  return brief + "\n" + (!fits && in_github_actions() ? annotation(brief) + "\n" : "");
}

}  // namespace oomcast::cli
