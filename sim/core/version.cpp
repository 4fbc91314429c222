#include "sim/core/version.hpp"

#include <fmt/core.h>

#include <charconv>

namespace oomcast {

std::optional<Version> parse_version(std::string_view text) {
  if (!text.empty() && (text[0] == 'v' || text[0] == 'V')) {
    text.remove_prefix(1);
  }
  Version version;
  std::size_t read = 0;
  for (int& part : version.parts) {
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, part);
    if (error != std::errc{} || part < 0) {
      part = 0;
      break;
    }
    ++read;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty() || text[0] != '.') {
      break;
    }
    text.remove_prefix(1);
  }
  return read >= 2 ? std::optional<Version>(version) : std::nullopt;
}

std::string to_string(const Version& version) {
  return fmt::format("{}.{}.{}", version.parts[0], version.parts[1], version.parts[2]);
}

}  // namespace oomcast
