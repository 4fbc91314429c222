#include "sim/launch/arguments.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "sim/launch/flag_value.hpp"

namespace oomcast::launch {
namespace {

bool looks_like_number(std::string_view text) {
  return text.size() > 1 && text.find_first_not_of("0123456789.", 1) == std::string_view::npos;
}

bool looks_like_option(std::string_view text) {
  return text.size() > 1 && text[0] == '-' && !looks_like_number(text) &&
         text.find(' ') == std::string_view::npos;
}

std::string dashed(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::string undashed_key(std::string_view key) {
  std::string out(key);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

// Two objects joined key by key; other values are replaced.
void merge(Json& into, const Json& from) {
  if (!into.is_object() || !from.is_object()) {
    into = from;
    return;
  }
  for (const auto& [key, value] : from.items()) {
    merge(into[key], value);
  }
}

class Reader {
 public:
  Reader(const FlagTable& table, const Version& version, Problems& problems);

  ParsedArguments read(const std::vector<Word>& arguments);

 private:
  // An option split into its parts.
  struct Option {
    Spelling spelling;
    std::string typed;  // as written, without an attached value
    std::string keys;   // dotted keys behind a JSON flag
    std::optional<std::string> attached;
  };

  [[nodiscard]] std::vector<std::string> candidates(const std::string& prefix) const;
  std::optional<Option> split_long(const Word& word);
  std::optional<Option> split_short(const Word& word);
  std::optional<Spelling> resolve_long(const std::string& name, const std::string& typed);
  void complain_unknown(const std::string& name, const std::string& typed);
  void apply(const Option& option, const std::vector<Word>& arguments, std::size_t& next);
  void take_values(const Option& option, const std::vector<Word>& arguments, std::size_t& next);
  void store(const Option& option, Json value, const std::string& written);
  static Json nested(const std::string& keys, Json value);

  const FlagTable* table_;
  Version version_;
  Problems* problems_;
  ParsedArguments out_;
  const Spellings& names_;
};

Reader::Reader(const FlagTable& table, const Version& version, Problems& problems)
    : table_(&table), version_(version), problems_(&problems), names_(table.spellings(version)) {}

std::vector<std::string> Reader::candidates(const std::string& prefix) const {
  std::vector<std::string> out;
  for (auto at = names_.long_forms.lower_bound(prefix);
       at != names_.long_forms.end() && at->first.starts_with(prefix); ++at) {
    out.push_back(at->first);
  }
  return out;
}

void Reader::complain_unknown(const std::string& name, const std::string& typed) {
  // A flag, or another spelling of one, that only other versions have.
  for (const FlagSpec& flag : table_->flags()) {
    const std::string canonical = "--" + flag.name;
    const bool named =
        name == canonical || (flag.type == FlagType::kBoolean && name == "--no-" + flag.name);
    if (named && !flag.versions.contains(version_)) {
      problems_->add(
          {kLaunchLine, typed, "",
           fmt::format("a flag of {} {}", table_->engine_name(), oomcast::to_string(version_)),
           fmt::format("`{}` exists {}", canonical, flag.versions.describe())});
      return;
    }
    for (const FlagAlias& alias : flag.aliases) {
      // An alias of all versions is of those only that have the flag.
      const VersionRange& versions =
          alias.versions.contains(version_) ? flag.versions : alias.versions;
      if (alias.name == name && !versions.contains(version_)) {
        problems_->add(
            {kLaunchLine, typed, "",
             fmt::format("a flag of {} {}", table_->engine_name(), oomcast::to_string(version_)),
             fmt::format("`{}` exists {}; the full name is `{}`", name, versions.describe(),
                         canonical)});
        return;
      }
    }
  }
  std::vector<std::string> names;
  for (const auto& [known, spelling] :
       name.starts_with("--") ? names_.long_forms : names_.short_forms) {
    names.push_back(known);
  }
  problems_->add({kLaunchLine, typed, "",
                  fmt::format("a flag that {} has in some version", table_->engine_name()),
                  did_you_mean(name, names)});
}

std::optional<Spelling> Reader::resolve_long(const std::string& name, const std::string& typed) {
  if (const auto exact = names_.long_forms.find(name); exact != names_.long_forms.end()) {
    return exact->second;
  }
  const auto known_elsewhere = [&](const FlagSpec& flag) { return "--" + flag.name == name; };
  const bool elsewhere =
      std::any_of(table_->flags().begin(), table_->flags().end(), known_elsewhere);
  std::vector<std::string> matching = elsewhere ? std::vector<std::string>{} : candidates(name);
  const bool one_flag =
      !matching.empty() && std::all_of(matching.begin(), matching.end(), [&](const auto& match) {
        return names_.long_forms.at(match).flag == names_.long_forms.at(matching[0]).flag &&
               names_.long_forms.at(match).negated == names_.long_forms.at(matching[0]).negated;
      });
  if (one_flag && name.size() > 2) {
    out_.notes.push_back(fmt::format("`{}` was read as `{}`", typed, matching[0]));
    return names_.long_forms.at(matching[0]);
  }
  if (matching.size() > 1 && name.size() > 2) {
    constexpr std::size_t kShown = 8;
    const bool more = matching.size() > kShown;
    matching.resize(std::min(matching.size(), kShown));
    problems_->add({kLaunchLine, typed, "",
                    fmt::format("a name that starts only one flag, not {}{}",
                                fmt::join(matching, ", "), more ? ", …" : ""),
                    ""});
    return std::nullopt;
  }
  complain_unknown(name, typed);
  return std::nullopt;
}

std::optional<Reader::Option> Reader::split_long(const Word& word) {
  const std::size_t equals = word.text.find('=');
  const std::string typed = word.text.substr(0, equals);
  // Keys behind a dot, unless the name with its dots is that of a flag.
  const bool whole = names_.long_forms.contains(dashed(typed));
  const std::size_t dot = whole ? std::string::npos : typed.find('.');
  const std::string name = dashed(typed.substr(0, dot));
  const auto spelling = resolve_long(name, typed);
  if (!spelling) {
    return std::nullopt;
  }
  Option option{*spelling, typed, dot == std::string::npos ? "" : typed.substr(dot + 1), {}};
  if (equals != std::string::npos) {
    option.attached = word.text.substr(equals + 1);
  }
  return option;
}

// "-tp", "-tp=2", "-cc.key=value", "-O3", "-qfp8".
std::optional<Reader::Option> Reader::split_short(const Word& word) {
  const std::size_t equals = word.text.find('=');
  const std::string typed = word.text.substr(0, equals);
  const std::size_t dot = typed.find('.');
  const std::string name = typed.substr(0, dot);
  if (const auto exact = names_.short_forms.find(name); exact != names_.short_forms.end()) {
    Option option{exact->second, typed, dot == std::string::npos ? "" : typed.substr(dot + 1), {}};
    if (!option.keys.empty() && !exact->second.flag->dotted.empty()) {
      option.spelling.flag = table_->find(exact->second.flag->dotted);
    }
    if (equals != std::string::npos) {
      option.attached = word.text.substr(equals + 1);
    }
    return option;
  }
  // Only one-letter forms take a value without a break.
  const auto letter = names_.short_forms.find(word.text.substr(0, 2));
  if (letter != names_.short_forms.end()) {
    return Option{letter->second, letter->first, {}, word.text.substr(2)};
  }
  complain_unknown(name, typed);
  return std::nullopt;
}

// {"a.b": v} as {"a": {"b": v}}.
Json Reader::nested(const std::string& keys, Json value) {
  std::size_t end = keys.size();
  while (true) {
    const std::size_t dot = end == 0 ? std::string::npos : keys.rfind('.', end - 1);
    const std::size_t from = dot == std::string::npos ? 0 : dot + 1;
    Json outer = Json::object();
    outer[undashed_key(keys.substr(from, end - from))] = std::move(value);
    value = std::move(outer);
    if (dot == std::string::npos) {
      return value;
    }
    end = dot;
  }
}

void Reader::store(const Option& option, Json value, const std::string& written) {
  const FlagSpec& flag = *option.spelling.flag;
  if (flag.effect == Effect::kNone) {
    return;
  }
  auto [at, inserted] = out_.flags.try_emplace(flag.name);
  FlagValue& stored = at->second;
  stored.origin = Origin::kGiven;
  const bool joins = flag.type == FlagType::kJson && value.is_object() && !inserted &&
                     (!option.keys.empty() || stored.value.is_object());
  if (joins) {
    if (stored.value.is_null()) {
      stored.value = Json::object();
    }
    merge(stored.value, value);
    stored.written += " " + written;
    return;
  }
  if (!inserted) {
    out_.notes.push_back(
        fmt::format("`{}` is given more than once; the last one counts", "--" + flag.name));
  }
  stored.value = std::move(value);
  stored.written = written;
}

void Reader::take_values(const Option& option, const std::vector<Word>& arguments,
                         std::size_t& next) {
  const FlagSpec& flag = *option.spelling.flag;
  std::vector<Word> values;
  if (option.attached) {
    // The word itself carries the value, and what is unknown about it.
    values.push_back(Word{*option.attached, arguments[next - 1].unknown});
  } else {
    const bool list = flag.type == FlagType::kIntegers || flag.type == FlagType::kTexts;
    while (next < arguments.size() && !looks_like_option(arguments[next].text) &&
           (list || values.empty())) {
      values.push_back(arguments[next++]);
    }
  }
  if (values.empty()) {
    problems_->add({kLaunchLine, option.typed, "", "a value after the flag", ""});
    return;
  }
  std::vector<std::string> texts;
  std::string written = option.typed;
  for (const Word& value : values) {
    texts.push_back(value.text);
    written += (option.attached ? "=" : " ") + value.text;
    if (!value.unknown.empty() && flag.effect != Effect::kNone) {
      problems_->add({kLaunchLine, option.typed, value.unknown, "a value that is written out",
                      "only a running shell knows this one"});
      return;
    }
  }
  if (flag.effect == Effect::kNone) {
    return;
  }
  ValueNotes notes{problems_, &out_.warnings, option.typed};
  if (option.keys.empty()) {
    if (auto value = read_flag_value(flag, version_, texts, notes)) {
      store(option, std::move(*value), written);
    }
    return;
  }
  if (flag.type != FlagType::kJson) {
    problems_->add({kLaunchLine, option.typed, "", "no dotted key",
                    fmt::format("`--{}` takes a plain value", flag.name)});
    return;
  }
  // "key+ a,b" gives a list.
  std::string keys = option.keys;
  Json value = read_loose_json(texts[0]);
  if (keys.ends_with("+")) {
    keys.pop_back();
    value = Json::array();
    std::size_t at = 0;
    while (at <= texts[0].size()) {
      const std::size_t comma = std::min(texts[0].find(',', at), texts[0].size());
      value.push_back(read_loose_json(texts[0].substr(at, comma - at)));
      at = comma + 1;
    }
  }
  constexpr auto kMaxKeys = 16;
  if (std::count(keys.begin(), keys.end(), '.') >= kMaxKeys) {
    problems_->add({kLaunchLine, option.typed, "", "at most 16 dotted keys", ""});
    return;
  }
  store(option, nested(keys, std::move(value)), written);
}

void Reader::apply(const Option& option, const std::vector<Word>& arguments, std::size_t& next) {
  const FlagSpec& flag = *option.spelling.flag;
  if (flag.effect == Effect::kNone) {
    out_.passed_over.push_back(option.typed);
  }
  if (flag.type != FlagType::kBoolean || !option.keys.empty()) {
    take_values(option, arguments, next);
    return;
  }
  bool value = true;
  if (option.attached) {
    ValueNotes notes{problems_, &out_.warnings, option.typed};
    const auto read = read_flag_value(flag, version_, {*option.attached}, notes);
    if (!read || !read->is_boolean()) {
      return;
    }
    value = read->get<bool>();
    out_.warnings.push_back(fmt::format("`{}={}`: the engine takes `--{}` or `--no-{}`, no value",
                                        option.typed, *option.attached, flag.name, flag.name));
  }
  store(option, Json(value != option.spelling.negated), option.typed);
}

ParsedArguments Reader::read(const std::vector<Word>& arguments) {
  std::size_t next = 0;
  bool only_positional = false;
  while (next < arguments.size()) {
    const Word& word = arguments[next++];
    if (only_positional || !looks_like_option(word.text)) {
      out_.positional.push_back(word);
      continue;
    }
    if (word.text == "--") {
      only_positional = true;
      continue;
    }
    const auto option = word.text.starts_with("--") ? split_long(word) : split_short(word);
    if (option) {
      apply(*option, arguments, next);
    } else {
      // The value of a flag that is not understood must not pass for the model's name.
      while (next < arguments.size() && word.text.find('=') == std::string::npos &&
             !looks_like_option(arguments[next].text)) {
        ++next;
      }
    }
  }
  return std::move(out_);
}

}  // namespace

ParsedArguments read_arguments(const FlagTable& table, const Version& version,
                               const std::vector<Word>& arguments, Problems& problems) {
  return Reader(table, version, problems).read(arguments);
}

}  // namespace oomcast::launch
