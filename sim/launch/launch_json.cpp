#include <fmt/ranges.h>

#include <array>

#include "sim/launch/flag_table.hpp"
#include "sim/launch/flag_value.hpp"
#include "sim/launch/launch.hpp"

namespace oomcast::launch {
namespace {

constexpr std::string_view kSchema = "oomcast.launch/1";

constexpr std::array<std::pair<std::string_view, Origin>, 3> kOrigins = {
    {{"given", Origin::kGiven},
     {"environment", Origin::kEnvironment},
     {"default", Origin::kDefault}}};
constexpr std::array<std::pair<std::string_view, VersionSource>, 3> kVersionSources = {
    {{"option", VersionSource::kOption},
     {"image tag", VersionSource::kImageTag},
     {"newest known", VersionSource::kNewestKnown}}};

template <typename Enum, std::size_t kSize>
std::string name_of(const std::array<std::pair<std::string_view, Enum>, kSize>& names, Enum value) {
  for (const auto& [name, known] : names) {
    if (known == value) {
      return std::string(name);
    }
  }
  return {};
}

template <typename Enum, std::size_t kSize>
Enum value_of(const std::array<std::pair<std::string_view, Enum>, kSize>& names,
              const JsonView& view, const char* key) {
  const std::string text = view.text(key).value_or("");
  for (const auto& [name, value] : names) {
    if (name == text) {
      return value;
    }
  }
  std::vector<std::string> choices;
  for (const auto& [name, value] : names) {
    choices.emplace_back(name);
  }
  view.complain(key, fmt::format("one of {}", fmt::join(choices, ", ")));
  return names[0].second;
}

void read_flags(Launch& launch, const JsonView& view) {
  const auto flags = view.object("flags");
  const FlagTable* table = flag_table(launch.engine);
  if (!flags || table == nullptr) {
    return;
  }
  std::vector<std::string> names;
  for (const FlagSpec& flag : table->flags()) {
    if (flag.is_kept() && flag.versions.contains(launch.version)) {
      names.push_back(flag.name);
      launch.flags[flag.name] = FlagValue{flag.default_in(launch.version), Origin::kDefault, {}};
    }
  }
  for (const auto& [name, entry] : flags->raw().items()) {
    const auto known = launch.flags.find(name);
    const auto row = flags->object(name);
    if (known == launch.flags.end()) {
      view.problems().add({view.source(), "flags", name,
                           fmt::format("a flag of {} {}", to_string(launch.engine),
                                       oomcast::to_string(launch.version)),
                           did_you_mean(name, names)});
      continue;
    }
    if (!row) {
      continue;
    }
    const auto value = entry.find("value");
    known->second.value = value == entry.end() ? Json() : *value;
    known->second.origin = value_of(kOrigins, *row, "origin");
    known->second.written = row->text("written").value_or("");
    ValueNotes notes{&view.problems(), &launch.warnings, "flags." + name};
    check_flag_value(*table->find(name), launch.version, known->second.value, notes);
  }
}

}  // namespace

OrderedJson to_json(const Launch& launch) {
  OrderedJson json;
  json["schema"] = kSchema;
  json["engine"] = to_string(launch.engine);
  json["version"] = launch.version_text;
  json["version_source"] = name_of(kVersionSources, launch.version_source);
  json["model"] = launch.model;
  json["flags"] = OrderedJson::object();
  for (const auto& [name, flag] : launch.flags) {
    OrderedJson row;
    row["value"] = OrderedJson(flag.value);
    row["origin"] = name_of(kOrigins, flag.origin);
    if (!flag.written.empty()) {
      row["written"] = flag.written;
    }
    json["flags"][name] = std::move(row);
  }
  json["environment"] = OrderedJson::object();
  for (const auto& [name, value] : launch.environment) {
    json["environment"][name] = value;
  }
  json["notes"] = launch.notes;
  json["warnings"] = launch.warnings;
  return json;
}

Launch launch_from_json(const Json& json, const std::string& source) {
  Problems problems;
  const JsonView view(json, source, "", problems);
  problems.raise_if_any();
  Launch launch;
  if (view.text("schema").value_or("") != kSchema) {
    view.complain("schema", "`" + std::string(kSchema) + "`");
  }
  if (const auto engine = parse_engine(view.text("engine").value_or(""))) {
    launch.engine = *engine;
  } else {
    view.complain("engine", "vllm, sglang or trtllm");
  }
  launch.version_text = view.text("version").value_or("");
  if (const auto version = parse_version(launch.version_text)) {
    launch.version = *version;
  } else if (flag_table(launch.engine) != nullptr) {
    view.complain("version", "a version such as 0.19.0");
  }
  launch.version_source = value_of(kVersionSources, view, "version_source");
  launch.model = view.text("model").value_or("");
  launch.notes = view.texts("notes").value_or(std::vector<std::string>{});
  launch.warnings = view.texts("warnings").value_or(std::vector<std::string>{});
  if (const auto variables = view.object("environment")) {
    for (const auto& [name, value] : variables->raw().items()) {
      if (const auto text = variables->text(name)) {
        launch.environment[name] = *text;
      }
    }
  }
  problems.raise_if_any();
  read_flags(launch, view);
  problems.raise_if_any();
  return launch;
}

}  // namespace oomcast::launch
