// Reading JSON that strangers wrote: bounded depth and size, and every complaint names file, key
// path and value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/error.hpp"

namespace oomcast {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// The value, or null.
template <typename Value>
OrderedJson or_null(const std::optional<Value>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

inline constexpr std::int64_t kMaxJsonFileBytes = std::int64_t{64} << 20;
inline constexpr int kMaxJsonDepth = 128;

// Throws ConfigError (source, line:column, what is wrong) for malformed, too deep or too large
// text.
Json parse_json(std::string_view text, const std::string& source);

// Whole file as text. Throws ConfigError if it cannot be read or is larger than `limit`.
std::string read_text_file(const std::string& path, std::int64_t limit = kMaxJsonFileBytes);
Json read_json_file(const std::string& path);

// A view of one JSON object with its path, for typed access. Getters return nullopt when the key is
// absent or null; a present value of the wrong type or outside [low, high] is added to `problems`
// and reads as absent. The view holds references: source, json and problems must outlive it.
class JsonView {
 public:
  JsonView(const Json& object, std::string source, std::string path, Problems& problems);

  [[nodiscard]] bool has(std::string_view key) const;  // present and not null
  [[nodiscard]] const Json* find(std::string_view key) const;
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t low,
                                                    std::int64_t high) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const;
  [[nodiscard]] std::optional<std::vector<std::string>> texts(std::string_view key) const;
  [[nodiscard]] std::optional<JsonView> object(std::string_view key) const;

  void complain(std::string_view key, std::string expected, std::string hint = {}) const;

  [[nodiscard]] const Json& raw() const { return *json_; }
  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] Problems& problems() const { return *problems_; }

 private:
  const Json* json_;
  std::string source_;
  std::string path_;
  Problems* problems_;
};

}  // namespace oomcast
