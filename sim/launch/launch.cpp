#include "sim/launch/launch.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "sim/launch/arguments.hpp"
#include "sim/launch/command.hpp"
#include "sim/launch/flag_table.hpp"
#include "sim/launch/flag_value.hpp"

namespace oomcast::launch {
namespace {

constexpr std::int64_t kMaxLaunchFile = std::int64_t{1} << 20;

constexpr std::array<std::pair<std::string_view, Engine>, 3> kEngineNames = {
    {{"vllm", Engine::kVllm}, {"sglang", Engine::kSglang}, {"trtllm", Engine::kTrtllm}}};

// The version to model, from the option, the image tag, or the newest known.
void choose_version(Launch& launch, const EngineCommand& command, const LaunchOptions& options,
                    Problems& problems) {
  const bool has_table = flag_table(launch.engine) != nullptr;
  if (!options.engine_version.empty()) {
    const auto version = parse_version(options.engine_version);
    if (!version) {
      problems.add({"command line", "--engine-version", options.engine_version,
                    "a version such as 0.19.0", ""});
      return;
    }
    launch.version = *version;
    launch.version_text = options.engine_version;
    launch.version_source = VersionSource::kOption;
  } else {
    const auto tagged = parse_version(command.image_tag);
    if (!has_table) {
      launch.version = tagged.value_or(Version{});
      launch.version_text = tagged ? command.image_tag : "";
      return;
    }
    const Version newest = known_versions(launch.engine).versions.back();
    // Some vendors tag images by year and month (25.09); that is no engine version.
    if (tagged && tagged->parts[0] == newest.parts[0]) {
      launch.version = *tagged;
      launch.version_text = command.image_tag;
      launch.version_source = VersionSource::kImageTag;
    } else {
      launch.version = newest;
      launch.version_text = oomcast::to_string(newest);
      launch.version_source = VersionSource::kNewestKnown;
      launch.notes.push_back(fmt::format(
          "engine version not given: {} {}, the newest known, is assumed (--engine-version)",
          to_string(launch.engine), launch.version_text));
    }
  }
  if (!has_table) {
    return;
  }
  const KnownVersions& known = known_versions(launch.engine);
  if (launch.version < known.oldest_accepted) {
    problems.add({kLaunchLine, "engine version", launch.version_text,
                  fmt::format("{} {} or newer", to_string(launch.engine),
                              oomcast::to_string(known.oldest_accepted)),
                  "older ones have another engine core"});
  } else if (launch.version < known.versions.front()) {
    launch.warnings.push_back(fmt::format(
        "{} {} is older than the versions known here; the rules of {} are used",
        to_string(launch.engine), launch.version_text, oomcast::to_string(known.versions.front())));
  } else if (launch.version > known.versions.back() &&
             (launch.version.parts[0] != known.versions.back().parts[0] ||
              launch.version.parts[1] != known.versions.back().parts[1])) {
    launch.warnings.push_back(fmt::format(
        "{} {} is newer than the versions known here; the rules of {} are used",
        to_string(launch.engine), launch.version_text, oomcast::to_string(known.versions.back())));
  }
}

void take_environment(Launch& launch, const EngineCommand& command, const FlagTable& table,
                      Problems& problems) {
  for (const auto& [name, word] : command.environment) {
    if (!table.variable_matters(name)) {
      continue;
    }
    if (!word.unknown.empty()) {
      problems.add({kLaunchLine, name, word.unknown, "a value that is written out",
                    "only a running shell knows this one"});
      continue;
    }
    launch.environment[name] = word.text;
  }
  for (const VariableSpec& variable : table.variables()) {
    const auto found = launch.environment.find(variable.name);
    if (found == launch.environment.end()) {
      continue;
    }
    if (!variable.warning.empty() && (variable.value.empty() || variable.value == found->second)) {
      launch.warnings.push_back(variable.name + "=" + found->second + ": " + variable.warning);
    }
    if (variable.flag.empty()) {
      continue;
    }
    if (!variable.versions.contains(launch.version)) {
      launch.warnings.push_back(fmt::format("{} {} does not read {} any more; use --{}",
                                            to_string(launch.engine), launch.version_text,
                                            variable.name, variable.flag));
      continue;
    }
    const FlagSpec& flag = *table.find(variable.flag);
    ValueNotes notes{&problems, &launch.warnings, variable.name};
    auto value = read_flag_value(flag, launch.version, {found->second}, notes);
    if (value && !launch.given(flag.name)) {
      launch.flags[flag.name] = FlagValue{std::move(*value), Origin::kEnvironment, variable.name};
    }
  }
}

void fill_defaults(Launch& launch, const FlagTable& table) {
  for (const FlagSpec& flag : table.flags()) {
    if (!flag.is_kept() || !flag.versions.contains(launch.version)) {
      continue;
    }
    launch.flags.try_emplace(flag.name,
                             FlagValue{flag.default_in(launch.version), Origin::kDefault, {}});
  }
}

// The model's name: the bare word of `vllm serve MODEL`, or `--model`.
void take_model(Launch& launch, const EngineCommand& command, const std::vector<Word>& positional,
                const std::optional<Word>& model_flag, Problems& problems) {
  std::size_t taken = 0;
  Word model;
  if (command.model_is_positional && !positional.empty()) {
    model = positional[0];
    taken = 1;
  }
  if (model_flag) {
    model = *model_flag;
  }
  for (std::size_t i = taken; i < positional.size(); ++i) {
    problems.add({kLaunchLine, "", positional[i].text, "a flag, or the value of one",
                  "booleans are written --flag or --no-flag"});
  }
  if (model.text.empty()) {
    const bool first = command.model_is_positional && !model_flag;
    problems.add({kLaunchLine, "model", "",
                  first ? "the model's name after `serve`" : "--model NAME",
                  "a --config file is not read"});
  } else if (!model.unknown.empty()) {
    problems.add({kLaunchLine, "model", model.unknown, "a model name that is written out",
                  "only a running shell knows this one"});
  }
  launch.model = model.text;
}

// Engines whose flags are not modelled yet: only the model's name is looked for.
std::optional<Word> named_value(const std::vector<Word>& arguments,
                                const std::vector<std::string_view>& names) {
  std::optional<Word> found;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    for (const std::string_view name : names) {
      const std::string& text = arguments[i].text;
      if (text == name && i + 1 < arguments.size()) {
        found = arguments[i + 1];
      } else if (text.size() > name.size() && text.starts_with(name) && text[name.size()] == '=') {
        found = Word{text.substr(name.size() + 1), arguments[i].unknown};
      }
    }
  }
  return found;
}

void read_other_engine(Launch& launch, const EngineCommand& command, Problems& problems) {
  const auto model = named_value(command.arguments, {"--model-path", "--model_path", "--model"});
  std::vector<Word> positional;
  if (command.model_is_positional && !model && !command.arguments.empty() &&
      !command.arguments[0].text.starts_with("-")) {
    positional.push_back(command.arguments[0]);
  }
  take_model(launch, command, positional, model, problems);
  for (const auto& [name, word] : command.environment) {
    launch.environment[name] = word.text;
  }
}

void read_flags(Launch& launch, const EngineCommand& command, const FlagTable& table,
                Problems& problems) {
  ParsedArguments parsed = read_arguments(table, launch.version, command.arguments, problems);
  launch.flags = std::move(parsed.flags);
  launch.notes.insert(launch.notes.end(), parsed.notes.begin(), parsed.notes.end());
  launch.warnings.insert(launch.warnings.end(), parsed.warnings.begin(), parsed.warnings.end());
  if (!parsed.passed_over.empty()) {
    launch.notes.push_back(fmt::format("passed over, they cannot change memory or scheduling: {}",
                                       fmt::join(parsed.passed_over, ", ")));
  }
  std::optional<Word> model_flag;
  if (const auto model = launch.flags.extract("model"); !model.empty()) {
    model_flag = Word{
        model.mapped().value.is_string() ? model.mapped().value.get<std::string>() : std::string{},
        {}};
  }
  take_model(launch, command, parsed.positional, model_flag, problems);
  if (launch.flags.erase("config") > 0) {
    launch.warnings.emplace_back("the file of --config is not read; write its flags in the line");
  }
  take_environment(launch, command, table, problems);
  fill_defaults(launch, table);
}

const FlagValue* stored(const Launch& launch, std::string_view flag) {
  const FlagTable* table = flag_table(launch.engine);
  const FlagSpec* spec = table == nullptr ? nullptr : table->find(flag);
  OOMCAST_CHECK(spec != nullptr && spec->is_kept(),
                "no flag `{}` with an effect in the table of {}", flag, to_string(launch.engine));
  const auto found = launch.flags.find(flag);
  return found == launch.flags.end() || found->second.value.is_null() ? nullptr : &found->second;
}

}  // namespace

std::string_view to_string(Engine engine) {
  for (const auto& [name, known] : kEngineNames) {
    if (known == engine) {
      return name;
    }
  }
  return "unknown";
}

std::optional<Engine> parse_engine(std::string_view name) {
  for (const auto& [known, engine] : kEngineNames) {
    if (known == name) {
      return engine;
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> Launch::integer(std::string_view flag) const {
  const FlagValue* value = stored(*this, flag);
  if (value == nullptr) {
    return std::nullopt;
  }
  OOMCAST_CHECK(value->value.is_number_integer(), "`{}` is no integer", flag);
  return value->value.get<std::int64_t>();
}

std::optional<double> Launch::number(std::string_view flag) const {
  const FlagValue* value = stored(*this, flag);
  if (value == nullptr) {
    return std::nullopt;
  }
  OOMCAST_CHECK(value->value.is_number(), "`{}` is no number", flag);
  return value->value.get<double>();
}

std::optional<bool> Launch::boolean(std::string_view flag) const {
  const FlagValue* value = stored(*this, flag);
  if (value == nullptr) {
    return std::nullopt;
  }
  OOMCAST_CHECK(value->value.is_boolean(), "`{}` is no boolean", flag);
  return value->value.get<bool>();
}

std::optional<std::string> Launch::text(std::string_view flag) const {
  const FlagValue* value = stored(*this, flag);
  if (value == nullptr) {
    return std::nullopt;
  }
  OOMCAST_CHECK(value->value.is_string(), "`{}` is no text", flag);
  return value->value.get<std::string>();
}

std::optional<std::vector<std::int64_t>> Launch::integers(std::string_view flag) const {
  const FlagValue* value = stored(*this, flag);
  if (value == nullptr) {
    return std::nullopt;
  }
  OOMCAST_CHECK(value->value.is_array(), "`{}` is no list", flag);
  return value->value.get<std::vector<std::int64_t>>();
}

std::optional<std::vector<std::string>> Launch::texts(std::string_view flag) const {
  const FlagValue* value = stored(*this, flag);
  if (value == nullptr) {
    return std::nullopt;
  }
  OOMCAST_CHECK(value->value.is_array(), "`{}` is no list", flag);
  return value->value.get<std::vector<std::string>>();
}

const Json* Launch::json(std::string_view flag, std::string_view path) const {
  const FlagValue* value = stored(*this, flag);
  if (value == nullptr) {
    return nullptr;
  }
  const Json* at = &value->value;
  while (!path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    if (!at->is_object()) {
      return nullptr;
    }
    const auto found = at->find(path.substr(0, dot));
    if (found == at->end() || found->is_null()) {
      return nullptr;
    }
    at = &*found;
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

bool Launch::given(std::string_view flag) const {
  const auto found = flags.find(flag);
  return found != flags.end() && found->second.origin != Origin::kDefault;
}

std::optional<std::string> Launch::variable(std::string_view name) const {
  const auto found = environment.find(name);
  return found == environment.end() ? std::nullopt : std::optional(found->second);
}

std::string launch_text(const std::string& argument) {
  return argument.starts_with("@") ? read_text_file(argument.substr(1), kMaxLaunchFile) : argument;
}

Launch parse_launch(std::string_view line, const LaunchOptions& options) {
  if (line.size() > static_cast<std::size_t>(kMaxLaunchFile)) {
    throw ConfigError(Problem{kLaunchLine, "", fmt::format("{} bytes", line.size()),
                              fmt::format("at most {} bytes", kMaxLaunchFile), ""});
  }
  Problems problems;
  const auto command = find_engine_command(line, problems);
  if (!command) {
    problems.raise_if_any();
  }
  Launch launch;
  launch.engine = command->engine;
  launch.notes = command->notes;
  if (options.engine && *options.engine != command->engine) {
    problems.add({kLaunchLine, "", std::string(to_string(command->engine)),
                  fmt::format("a launch line of {}", to_string(*options.engine)), ""});
    problems.raise_if_any();
  }
  choose_version(launch, *command, options, problems);
  // Without a version there is no table to read the flags by.
  problems.raise_if_any();
  if (const FlagTable* table = flag_table(launch.engine)) {
    read_flags(launch, *command, *table, problems);
  } else {
    read_other_engine(launch, *command, problems);
  }
  problems.raise_if_any();
  return launch;
}

std::string canonical_flag(const Launch& launch, std::string_view name) {
  const FlagTable* table = flag_table(launch.engine);
  OOMCAST_CHECK(table != nullptr, "an engine without flags");
  std::string plain(name);
  std::replace(plain.begin(), plain.end(), '_', '-');
  const Spellings& spellings = table->spellings(launch.version);
  // Keys of a JSON flag follow a dot, unless the name with its dots is that of a flag.
  const bool whole = spellings.long_forms.contains("--" + plain);
  const std::string flag = whole ? plain : plain.substr(0, plain.find('.'));
  const std::string keys = plain.substr(flag.size());
  if (const auto found = spellings.long_forms.find("--" + flag);
      found != spellings.long_forms.end()) {
    return found->second.flag->name + keys;
  }
  if (const auto found = spellings.short_forms.find("-" + flag);
      found != spellings.short_forms.end()) {
    return found->second.flag->name + keys;
  }
  std::vector<std::string> names;
  for (const FlagSpec& spec : table->flags()) {
    if (spec.versions.contains(launch.version)) {
      names.push_back(spec.name);
    }
  }
  const FlagSpec* other = table->find(flag);
  throw ConfigError(Problem{
      "command line", std::string(name), "",
      fmt::format("a flag of {} {}", table->engine_name(), launch.version_text),
      other != nullptr ? fmt::format("`--{}` exists {}", other->name, other->versions.describe())
                       : did_you_mean(flag, names)});
}

void set_flag(Launch& launch, std::string_view flag, std::string_view value) {
  const FlagTable* table = flag_table(launch.engine);
  if (table == nullptr) {
    throw ConfigError(
        Problem{"command line", std::string(flag), "",
                fmt::format("an engine with a flag table, not {}", to_string(launch.engine)), ""});
  }
  Problems problems;
  const std::string typed = "--" + std::string(flag) + "=" + std::string(value);
  ParsedArguments parsed = read_arguments(*table, launch.version, {Word{typed, {}}}, problems);
  const bool kept = parsed.flags.size() == 1 && table->find(parsed.flags.begin()->first)->is_kept();
  if (problems.empty() && !kept) {
    problems.add(
        {"command line", std::string(flag), "", "a flag that can change memory or scheduling", ""});
  }
  problems.raise_if_any();
  for (auto& [name, changed] : parsed.flags) {
    FlagValue& old = launch.flags[name];
    const bool dotted = flag.find('.') != std::string_view::npos;
    if (dotted && old.value.is_object()) {
      // Dotted keys join the object that the line gave.
      const Json& patch = changed.value;
      old.value.merge_patch(patch);
      old.origin = Origin::kGiven;
      old.written = changed.written;
    } else {
      old = std::move(changed);
    }
  }
}

}  // namespace oomcast::launch
