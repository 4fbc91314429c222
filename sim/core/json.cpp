#include "sim/core/json.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>

namespace oomcast {
namespace {

struct Position {
  std::size_t line = 1;
  std::size_t column = 1;
};

Position position_at(std::string_view text, std::size_t offset) {
  Position at;
  for (std::size_t i = 0; i < std::min(offset, text.size()); ++i) {
    if (text[i] == '\n') {
      ++at.line;
      at.column = 1;
    } else {
      ++at.column;
    }
  }
  return at;
}

// Before parsing, so that neither the parser nor what walks its result can be made to recurse
// without bound. (The parser's own callback would cost time quadratic in an object's members.)
void check_depth(std::string_view text, const std::string& source) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (in_string) {
      i += letter == '\\' ? 1 : 0;
      in_string = letter != '"';
    } else if (letter == '"') {
      in_string = true;
    } else if (letter == '{' || letter == '[') {
      if (++depth > kMaxJsonDepth) {
        throw ConfigError(Problem{source, "", "deeper nesting",
                                  fmt::format("JSON nested at most {} levels", kMaxJsonDepth), ""});
      }
    } else if (letter == '}' || letter == ']') {
      --depth;
    }
  }
}

std::string joined(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : path + "." + std::string(key);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& source) {
  if (text.size() > static_cast<std::size_t>(kMaxJsonFileBytes)) {
    throw ConfigError(Problem{source, "", fmt::format("{} bytes", text.size()),
                              fmt::format("JSON of at most {} bytes", kMaxJsonFileBytes), ""});
  }
  check_depth(text, source);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    const Position at = position_at(text, error.byte == 0 ? 0 : error.byte - 1);
    const std::size_t from = std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
    throw ConfigError(Problem{source, fmt::format("line {} column {}", at.line, at.column),
                              text.empty() ? "nothing" : std::string(text.substr(from, 24)),
                              "valid JSON", ""});
  } catch (const Json::exception& error) {
    throw ConfigError(Problem{source, "", error.what(), "valid JSON", ""});
  }
}

std::string read_text_file(const std::string& path, std::int64_t limit) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw ConfigError(Problem{path, "", "a folder", "a file", ""});
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw ConfigError(Problem{path, "", "", "a readable file", "it cannot be opened"});
  }
  std::string text;
  std::string chunk(std::size_t{1} << 16, '\0');
  while (in.read(chunk.data(), static_cast<std::streamsize>(chunk.size())) || in.gcount() > 0) {
    text.append(chunk, 0, static_cast<std::size_t>(in.gcount()));
    if (static_cast<std::int64_t>(text.size()) > limit) {
      throw ConfigError(
          Problem{path, "", "a larger file", fmt::format("at most {} bytes", limit), ""});
    }
  }
  if (in.bad()) {
    throw ConfigError(Problem{path, "", "", "a readable file", "reading failed midway"});
  }
  return text;
}

Json read_json_file(const std::string& path) { return parse_json(read_text_file(path), path); }

JsonView::JsonView(const Json& object, std::string source, std::string path, Problems& problems)
    : json_(&object), source_(std::move(source)), path_(std::move(path)), problems_(&problems) {
  if (!object.is_object()) {
    problems.add({source_, path_, object.dump().substr(0, 64), "a JSON object", ""});
  }
}

const Json* JsonView::find(std::string_view key) const {
  if (!json_->is_object()) {
    return nullptr;
  }
  const auto at = json_->find(key);
  return at == json_->end() || at->is_null() ? nullptr : &*at;
}

bool JsonView::has(std::string_view key) const { return find(key) != nullptr; }

void JsonView::complain(std::string_view key, std::string expected, std::string hint) const {
  const Json* value = find(key);
  problems_->add({source_, joined(path_, key),
                  value == nullptr
                      ? "nothing"
                      : value->dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 200),
                  std::move(expected), std::move(hint)});
}

std::optional<std::int64_t> JsonView::integer(std::string_view key, std::int64_t low,
                                              std::int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  std::optional<std::int64_t> number;
  if (value->is_number_unsigned()) {
    const auto unsigned_value = value->get<std::uint64_t>();
    if (unsigned_value <= static_cast<std::uint64_t>(INT64_MAX)) {
      number = static_cast<std::int64_t>(unsigned_value);
    }
  } else if (value->is_number_integer()) {
    number = value->get<std::int64_t>();
  } else if (value->is_number_float()) {
    // Some exporters write 32.0; anything with a fraction is refused.
    const double real = value->get<double>();
    if (std::floor(real) == real && std::abs(real) < 9e15) {
      number = static_cast<std::int64_t>(real);
    }
  }
  if (!number || *number < low || *number > high) {
    complain(key, fmt::format("an integer from {} to {}", low, high));
    return std::nullopt;
  }
  return number;
}

std::optional<double> JsonView::number(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    complain(key, "a finite number");
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<bool> JsonView::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_boolean()) {
    complain(key, "true or false");
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> JsonView::text(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    complain(key, "a string");
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::optional<std::vector<std::string>> JsonView::texts(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  std::vector<std::string> out;
  if (value->is_array()) {
    for (const Json& item : *value) {
      if (!item.is_string()) {
        complain(key, "a list of strings");
        return std::nullopt;
      }
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  complain(key, "a list of strings");
  return std::nullopt;
}

std::optional<JsonView> JsonView::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_object()) {
    complain(key, "a JSON object");
    return std::nullopt;
  }
  return JsonView(*value, source_, joined(path_, key), *problems_);
}

}  // namespace oomcast
