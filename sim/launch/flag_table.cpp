#include "sim/launch/flag_table.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "models/data.hpp"

namespace oomcast::launch {
namespace {

const std::vector<std::pair<std::string_view, FlagType>>& type_names() {
  static const std::vector<std::pair<std::string_view, FlagType>> names = {
      {"bool", FlagType::kBoolean},  {"int", FlagType::kInteger},
      {"count", FlagType::kCount},   {"count_or_auto", FlagType::kCountOrAuto},
      {"number", FlagType::kNumber}, {"text", FlagType::kText},
      {"json", FlagType::kJson},     {"ints", FlagType::kIntegers},
      {"texts", FlagType::kTexts}};
  return names;
}

VersionRange read_range(const JsonView& view) {
  VersionRange range;
  const auto read = [&](const char* key, std::optional<Version>& bound) {
    if (const auto text = view.text(key)) {
      bound = parse_version(*text);
      if (!bound) {
        view.complain(key, "a version such as 0.12.0");
      }
    }
  };
  read("since", range.since);
  read("removed", range.removed);
  return range;
}

// A bare value, or a list of values each bare or {"value":…, "since":…, "removed":…}.
std::vector<FlagChoice> read_rows(const JsonView& view, std::string_view key) {
  std::vector<FlagChoice> rows;
  const Json* json = view.find(key);
  if (json == nullptr) {
    return rows;
  }
  if (!json->is_array()) {
    rows.push_back({*json, {}});
    return rows;
  }
  for (const Json& item : *json) {
    if (item.is_object()) {
      const JsonView row(item, view.source(), view.path() + "." + std::string(key),
                         view.problems());
      const auto value = item.find("value");
      rows.push_back({value == item.end() ? Json() : *value, read_range(row)});
    } else {
      rows.push_back({item, {}});
    }
  }
  return rows;
}

FlagSpec read_flag(const JsonView& view) {
  FlagSpec flag;
  flag.name = view.text("name").value_or("");
  if (flag.name.empty()) {
    view.complain("name", "a flag name");
  }
  const std::string type = view.text("type").value_or("");
  const auto& names = type_names();
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const auto& entry) { return entry.first == type; });
  if (found == names.end()) {
    view.complain("type", "bool, int, count, count_or_auto, number, text, json, ints or texts");
  } else {
    flag.type = found->second;
  }
  const std::string effect = view.text("effect").value_or("none");
  flag.effect = effect == "memory"       ? Effect::kMemory
                : effect == "scheduling" ? Effect::kScheduling
                : effect == "launch"     ? Effect::kLaunch
                                         : Effect::kNone;
  flag.text = view.text("text").value_or("");
  flag.versions = read_range(view);
  for (FlagChoice& row : read_rows(view, "aliases")) {
    if (row.value.is_string()) {
      flag.aliases.push_back({row.value.get<std::string>(), row.versions});
    } else {
      view.complain("aliases", "names such as \"-tp\"");
    }
  }
  flag.defaults = read_rows(view, "default");
  flag.choices = read_rows(view, "choices");
  flag.open_choices = view.boolean("open_choices").value_or(false);
  flag.low = view.number("min");
  flag.high = view.number("max");
  if (const auto above = view.number("above")) {
    flag.low = above;
    flag.low_is_open = true;
  }
  if (const auto below = view.number("below")) {
    flag.high = below;
    flag.high_is_open = true;
  }
  flag.bare_key = read_rows(view, "bare_key");
  flag.pairs = view.boolean("pairs").value_or(false);
  flag.dotted = view.text("dotted").value_or("");
  flag.modelled = view.boolean("modelled").value_or(true);
  flag.refused = view.text("refused").value_or("");
  flag.instead = view.text("instead").value_or("");
  if (const Json* values = view.find("harmless"); values != nullptr && values->is_array()) {
    flag.harmless.assign(values->begin(), values->end());
  } else if (values != nullptr) {
    view.complain("harmless", "a list of values");
  }
  return flag;
}

}  // namespace

bool VersionRange::contains(const Version& version) const {
  return (!since || version >= *since) && (!removed || version < *removed);
}

std::string VersionRange::describe() const {
  std::string out;
  if (since) {
    out = "from " + oomcast::to_string(*since) + " on";
  }
  if (removed) {
    out += std::string(out.empty() ? "" : " and ") + "before " + oomcast::to_string(*removed);
  }
  return out.empty() ? "in every version" : out;
}

Json FlagSpec::default_in(const Version& version) const {
  for (const FlagChoice& row : defaults) {
    if (row.versions.contains(version)) {
      return row.value;
    }
  }
  return nullptr;
}

bool FlagSpec::asks(const Json& value, const Version& version) const {
  static const std::array<Json, 8> kOff = {nullptr, false, 0, -1, "", "auto", "none", "{}"};
  const auto is = [&value](const Json& other) { return value == other; };
  return !is(default_in(version)) && std::none_of(kOff.begin(), kOff.end(), is) &&
         std::none_of(harmless.begin(), harmless.end(), is) &&
         !(value.is_structured() && value.empty());
}

std::string FlagSpec::bare_key_in(const Version& version) const {
  for (const FlagChoice& row : bare_key) {
    if (row.versions.contains(version) && row.value.is_string()) {
      return row.value.get<std::string>();
    }
  }
  return {};
}

FlagTable::FlagTable(const Json& json, const std::string& source) {
  Problems problems;
  const JsonView top(json, source, "", problems);
  engine_name_ = top.text("engine").value_or("the engine");
  const auto each = [&](const char* key, auto&& read) {
    const Json* list = top.find(key);
    if (list == nullptr || !list->is_array()) {
      top.complain(key, "a list");
      return;
    }
    std::size_t at = 0;
    for (const Json& item : *list) {
      read(JsonView(item, source, fmt::format("{}[{}]", key, at++), problems));
    }
  };
  each("flags", [&](const JsonView& view) {
    FlagSpec flag = read_flag(view);
    if (!index_.emplace(flag.name, flags_.size()).second) {
      view.complain("name", "a name that no other flag has");
    }
    flags_.push_back(std::move(flag));
  });
  // Flags that cannot change memory or scheduling: only how many values they take matters.
  each("passed_over", [&](const JsonView& view) {
    FlagSpec flag = read_flag(view);
    flag.effect = Effect::kNone;
    if (!index_.emplace(flag.name, flags_.size()).second) {
      view.complain("name", "a name that no other flag has");
    }
    flags_.push_back(std::move(flag));
  });
  each("variables", [&](const JsonView& view) {
    VariableSpec variable{view.text("name").value_or(""), view.text("flag").value_or(""),
                          read_range(view), view.text("value").value_or(""),
                          view.text("warning").value_or("")};
    if (!variable.flag.empty() && find(variable.flag) == nullptr) {
      view.complain("flag", "the name of a flag of this table");
    }
    variables_.push_back(std::move(variable));
  });
  variable_prefixes_ = top.texts("variable_prefixes").value_or(std::vector<std::string>{});
  problems.raise_if_any();
}

const FlagSpec* FlagTable::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &flags_[found->second];
}

bool FlagTable::variable_matters(std::string_view name) const {
  return std::any_of(variable_prefixes_.begin(), variable_prefixes_.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

namespace {

constexpr std::array<Engine, 3> kEngines = {Engine::kVllm, Engine::kSglang, Engine::kTrtllm};

std::string data_file(Engine engine, const char* name) {
  return fmt::format("engines/{}/{}", to_string(engine), name);
}

KnownVersions read_versions(const std::string& source) {
  const Json& json = models::embedded_json(source);
  Problems problems;
  const JsonView view(json, source, "", problems);
  KnownVersions known;
  for (const std::string& text : view.texts("versions").value_or(std::vector<std::string>{})) {
    if (const auto version = parse_version(text)) {
      known.versions.push_back(*version);
    } else {
      view.complain("versions", "versions such as 0.12.0");
    }
  }
  const auto oldest = parse_version(view.text("oldest_accepted").value_or(""));
  if (known.versions.empty() || !oldest ||
      !std::is_sorted(known.versions.begin(), known.versions.end())) {
    view.complain("versions", "ascending versions, and `oldest_accepted`");
  }
  problems.raise_if_any();
  known.oldest_accepted = *oldest;
  return known;
}

}  // namespace

Spellings FlagTable::find_spellings(const Version& version) const {
  Spellings names;
  const auto add = [&names](const FlagSpec& flag, const std::string& name) {
    (name.starts_with("--") ? names.long_forms : names.short_forms)[name] = {&flag, false};
    if (flag.type == FlagType::kBoolean && name.starts_with("--")) {
      names.long_forms["--no-" + name.substr(2)] = {&flag, true};
    }
  };
  for (const FlagSpec& flag : flags_) {
    if (!flag.versions.contains(version)) {
      continue;
    }
    add(flag, "--" + flag.name);
    for (const FlagAlias& alias : flag.aliases) {
      if (alias.versions.contains(version)) {
        add(flag, alias.name);
      }
    }
  }
  return names;
}

const Spellings& FlagTable::spellings(const Version& version) const {
  const std::lock_guard lock(known_->mutex);
  const auto [at, is_new] = known_->by_version.try_emplace(version);
  if (is_new) {
    at->second = find_spellings(version);
  }
  return at->second;
}

const FlagTable* flag_table(Engine engine) {
  static const std::map<Engine, FlagTable> tables = [] {
    std::map<Engine, FlagTable> read;
    for (const Engine each : kEngines) {
      const std::string source = data_file(each, "flags.json");
      if (!models::embedded_names(source).empty()) {
        read.emplace(each, FlagTable(models::embedded_json(source), source));
      }
    }
    return read;
  }();
  const auto found = tables.find(engine);
  return found == tables.end() ? nullptr : &found->second;
}

const KnownVersions& known_versions(Engine engine) {
  OOMCAST_CHECK(flag_table(engine) != nullptr, "no version data for engine {}", to_string(engine));
  static const std::map<Engine, KnownVersions> versions = [] {
    std::map<Engine, KnownVersions> read;
    for (const Engine each : kEngines) {
      if (flag_table(each) != nullptr) {
        read.emplace(each, read_versions(data_file(each, "versions.json")));
      }
    }
    return read;
  }();
  return versions.at(engine);
}

}  // namespace oomcast::launch
