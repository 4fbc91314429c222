#include "sim/launch/flag_value.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "sim/core/units_text.hpp"

namespace oomcast::launch {
namespace {

void complain(ValueNotes& notes, std::string value, std::string expected, std::string hint = {}) {
  notes.problems->add(
      {kLaunchLine, notes.place, std::move(value), std::move(expected), std::move(hint)});
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t number = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  return text.empty() || error != std::errc{} || end != last ? std::nullopt : std::optional(number);
}

// Engines read `None` (and nothing) as "not set".
bool is_unset(const std::string& text) { return text == "None" || text == "null"; }

std::string choice_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

bool same_choice(const Json& choice, const Json& value) {
  if (choice.is_number() && value.is_number()) {
    return choice.get<double>() == value.get<double>();
  }
  return choice == value;
}

void check_choices(const FlagSpec& flag, const Version& version, const Json& value,
                   ValueNotes& notes) {
  std::vector<std::string> possible;
  for (const FlagChoice& choice : flag.choices) {
    const bool now = choice.versions.contains(version);
    if (now) {
      possible.push_back(choice_text(choice.value));
    }
    if (same_choice(choice.value, value)) {
      if (!now) {
        complain(notes, choice_text(value),
                 fmt::format("a value that version {} has", oomcast::to_string(version)),
                 fmt::format("`{}` exists {}", choice_text(value), choice.versions.describe()));
      }
      return;
    }
  }
  const std::string slip = nearest_name(choice_text(value), possible);
  if (flag.open_choices && slip.empty()) {
    notes.warnings->push_back(fmt::format("{}: `{}` is not a value known here; taken as it is",
                                          notes.place, choice_text(value)));
    return;
  }
  complain(notes, choice_text(value), fmt::format("one of {}", fmt::join(possible, ", ")),
           slip.empty() ? "" : "did you mean `" + slip + "`?");
}

// Adds a problem, or a warning for an open list of choices.
void check_one(const FlagSpec& flag, const Version& version, const Json& value, ValueNotes& notes) {
  if (value.is_number()) {
    const double number = value.get<double>();
    const bool too_low = flag.low && (flag.low_is_open ? number <= *flag.low : number < *flag.low);
    const bool too_high =
        flag.high && (flag.high_is_open ? number >= *flag.high : number > *flag.high);
    // -1 is how "derive it" is written where that is possible.
    const bool automatic = flag.type == FlagType::kCountOrAuto && number == -1;
    if ((too_low || too_high) && !automatic) {
      std::string range;
      if (flag.low) {
        range = fmt::format(" {} {}", flag.low_is_open ? "above" : "from", *flag.low);
      }
      if (flag.high) {
        range += fmt::format(" {} {}", flag.high_is_open ? "below" : "up to", *flag.high);
      }
      complain(notes, value.dump(), "a number" + range);
      return;
    }
  }
  if (!flag.choices.empty()) {
    check_choices(flag, version, value, notes);
  }
}

std::optional<Json> read_number(const FlagSpec& flag, const std::string& text, ValueNotes& notes) {
  switch (flag.type) {
    case FlagType::kCountOrAuto:
      if (text == "auto" || text == "-1") {
        return Json(-1);
      }
      [[fallthrough]];
    case FlagType::kCount:
      if (const auto count = parse_count(text)) {
        return Json(*count);
      }
      complain(notes, text, "a whole number such as 8192, 8k (8000) or 8K (8192)");
      return std::nullopt;
    case FlagType::kNumber:
      if (const auto number = parse_number(text)) {
        return Json(*number);
      }
      complain(notes, text, "a number");
      return std::nullopt;
    default:
      if (const auto number = whole_number(text)) {
        return Json(*number);
      }
      complain(notes, text, "a whole number");
      return std::nullopt;
  }
}

std::optional<Json> read_pairs(const std::string& text) {
  Json object = Json::object();
  std::size_t at = 0;
  while (at <= text.size()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, comma - at);
    const std::size_t equals = item.find('=');
    const auto number = equals == std::string::npos || equals == 0
                            ? std::nullopt
                            : whole_number(std::string_view(item).substr(equals + 1));
    if (!number) {
      return std::nullopt;
    }
    object[item.substr(0, equals)] = *number;
    at = comma + 1;
  }
  return object;
}

std::optional<Json> read_object(const FlagSpec& flag, const Version& version,
                                const std::string& text, ValueNotes& notes) {
  if (flag.pairs) {
    if (auto object = read_pairs(text)) {
      return object;
    }
  }
  Json value;
  const bool looks_like_json = text.starts_with("{") || text.starts_with("[");
  try {
    value = looks_like_json ? parse_json(text, kLaunchLine) : read_loose_json(text);
  } catch (const ConfigError& error) {
    const Problem& problem = error.problems().front();
    complain(notes, problem.value.empty() ? text : problem.value,
             "valid JSON (" + problem.place + ")",
             "keep JSON in single quotes: '{\"key\": \"value\"}'");
    return std::nullopt;
  }
  if (value.is_object()) {
    return value;
  }
  const std::string key = flag.bare_key_in(version);
  if (!key.empty() && (value.is_number_integer() || value.is_string())) {
    return Json{{key, value}};
  }
  complain(notes, text, "a JSON object", "keep JSON in single quotes: '{\"key\": \"value\"}'");
  return std::nullopt;
}

bool has_type(const FlagSpec& flag, const Json& value) {
  switch (flag.type) {
    case FlagType::kBoolean:
      return value.is_boolean();
    case FlagType::kInteger:
    case FlagType::kCount:
    case FlagType::kCountOrAuto:
      return value.is_number_integer() &&
             (!value.is_number_unsigned() ||
              value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
    case FlagType::kNumber:
      return value.is_number();
    case FlagType::kText:
      return value.is_string();
    case FlagType::kJson:
      return value.is_object();
    case FlagType::kIntegers:
      return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& item) {
               return item.is_number_integer();
             });
    case FlagType::kTexts:
      return value.is_array() && std::all_of(value.begin(), value.end(),
                                             [](const Json& item) { return item.is_string(); });
  }
  return false;
}

}  // namespace

Json read_loose_json(const std::string& text) {
  if (is_unset(text)) {
    return nullptr;
  }
  if (text == "True" || text == "False") {
    return text == "True";
  }
  try {
    return parse_json(text, kLaunchLine);
  } catch (const ConfigError&) {
    return text;
  }
}

bool check_flag_value(const FlagSpec& flag, const Version& version, const Json& value,
                      ValueNotes& notes) {
  if (value.is_null()) {
    return true;
  }
  const std::size_t before = notes.problems->found().size();
  if (!has_type(flag, value)) {
    complain(notes, value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 100),
             "a value of the flag's type");
  } else if (value.is_array()) {
    for (const Json& item : value) {
      check_one(flag, version, item, notes);
    }
  } else if (!value.is_object()) {
    check_one(flag, version, value, notes);
  }
  return notes.problems->found().size() == before;
}

std::optional<Json> read_flag_value(const FlagSpec& flag, const Version& version,
                                    const std::vector<std::string>& texts, ValueNotes& notes) {
  std::optional<Json> value;
  const std::string& text = texts.at(0);
  const bool list = flag.type == FlagType::kIntegers || flag.type == FlagType::kTexts;
  if (!list && is_unset(text)) {
    return Json(nullptr);
  }
  switch (flag.type) {
    case FlagType::kBoolean: {
      const Json parsed = read_loose_json(text);
      const bool as_number = parsed.is_number_integer() && (parsed == 0 || parsed == 1);
      if (!parsed.is_boolean() && !as_number) {
        complain(notes, text, "true or false");
        return std::nullopt;
      }
      return Json(as_number ? parsed == 1 : parsed.get<bool>());
    }
    case FlagType::kText:
      value = Json(text);
      break;
    case FlagType::kJson:
      value = read_object(flag, version, text, notes);
      break;
    case FlagType::kIntegers:
      value = Json::array();
      for (const std::string& item : texts) {
        const auto number = whole_number(item);
        if (!number) {
          complain(notes, item, "whole numbers");
          return std::nullopt;
        }
        value->push_back(*number);
      }
      break;
    case FlagType::kTexts:
      value = Json(texts);
      break;
    default:
      value = read_number(flag, text, notes);
  }
  if (!value || !check_flag_value(flag, version, *value, notes)) {
    return std::nullopt;
  }
  return value;
}

}  // namespace oomcast::launch
