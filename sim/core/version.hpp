// Engine versions: dotted numbers, compared part by part. "0.19.0.post1" and "v0.19.0-rc1" read as
// 0.19.0.
#pragma once

#include <array>
#include <compare>
#include <optional>
#include <string>
#include <string_view>

namespace oomcast {

struct Version {
  std::array<int, 3> parts{};

  friend constexpr auto operator<=>(const Version&, const Version&) = default;
};

// "0.19", "0.19.0", "v0.5.8.post1"; nullopt unless it starts with number dot number.
std::optional<Version> parse_version(std::string_view text);
std::string to_string(const Version& version);

}  // namespace oomcast
