#include "sim/report/schemas.hpp"

#include <fmt/format.h>

#include "sim/core/error.hpp"

namespace oomcast::schemas {
namespace {

constexpr std::string_view kEnding = ".schema.json";

}  // namespace

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& [file, text] : detail::compiled_in_files()) {
    out.emplace_back(file.substr(0, file.size() - kEnding.size()));
  }
  return out;
}

std::string_view text(const std::string& name) {
  const auto found = detail::compiled_in_files().find(name + std::string(kEnding));
  if (found == detail::compiled_in_files().end()) {
    throw ConfigError(Problem{"command line", "schema", name,
                              fmt::format("one of: {}", fmt::join(names(), ", ")),
                              did_you_mean(name, names())});
  }
  return found->second;
}

}  // namespace oomcast::schemas
