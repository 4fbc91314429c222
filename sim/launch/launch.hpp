// A pasted shell line as typed engine flags: the first value of the way through. Nothing is
// executed; what cannot be known without a shell is an error, or a note where it cannot matter.
//
// Flags carry the canonical name of models/engines/<engine>/flags.json, without leading dashes, in
// kebab case ("max-num-seqs"). Every flag that the chosen version has is present: as typed, from an
// environment variable, or as that version's default. A default of null means that the engine
// works the value out itself (from the model, the GPU, other flags).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/core/version.hpp"

namespace oomcast::launch {

enum class Engine { kVllm, kSglang, kTrtllm };
std::string_view to_string(Engine engine);  // "vllm", "sglang", "trtllm"
std::optional<Engine> parse_engine(std::string_view name);

enum class Origin {
  kGiven,        // in the launch line
  kEnvironment,  // an environment variable that stands for the flag
  kDefault,      // the version's default
};

// Where the engine version was taken from.
enum class VersionSource { kOption, kImageTag, kNewestKnown };

struct FlagValue {
  Json value;  // null, boolean, integer, number, string, array or object
  Origin origin = Origin::kDefault;
  std::string written;  // given: as typed ("-tp 2"); environment: the variable's name
};

class Launch {
 public:
  Engine engine = Engine::kVllm;
  std::string version_text;  // as given ("0.19.0.post1"); empty for an engine without version data
  Version version;
  VersionSource version_source = VersionSource::kNewestKnown;
  std::string model;  // model name or path, as typed

  std::map<std::string, FlagValue, std::less<>> flags;
  std::map<std::string, std::string, std::less<>> environment;  // the variables that matter
  std::vector<std::string> notes;     // passed over, repeated, assumed: nothing wrong
  std::vector<std::string> warnings;  // may change the result

  // Getters read nullopt when the value is null or the chosen version has no such flag. A name that
  // no version has, or the wrong type, is a bug and aborts.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view flag) const;
  [[nodiscard]] std::optional<double> number(std::string_view flag) const;
  [[nodiscard]] std::optional<bool> boolean(std::string_view flag) const;
  [[nodiscard]] std::optional<std::string> text(std::string_view flag) const;
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view flag) const;
  [[nodiscard]] std::optional<std::vector<std::string>> texts(std::string_view flag) const;
  // A JSON-valued flag, or the value at a path of keys inside it
  // (`json("compilation-config", "pass_config.fuse_norm_quant")`); nullptr when absent or null.
  [[nodiscard]] const Json* json(std::string_view flag, std::string_view path = {}) const;

  // Shorthand for a boolean flag that always has a value: false when absent.
  [[nodiscard]] bool on(std::string_view flag) const { return boolean(flag).value_or(false); }
  // Typed by the user, or by an environment variable; not a default.
  [[nodiscard]] bool given(std::string_view flag) const;
  // A variable's text, nullopt when it was not set on the line.
  [[nodiscard]] std::optional<std::string> variable(std::string_view name) const;
  [[nodiscard]] bool at_least(int major, int minor, int patch = 0) const {
    return version >= Version{{major, minor, patch}};
  }
};

struct LaunchOptions {
  std::optional<Engine> engine =
      std::nullopt;  // what the caller asked for; another one in the line is an error
  std::string engine_version = {};  // wins over an image tag; empty: image tag, else newest known
};

// The value of `--launch`: the line itself, or `@file` for a file that holds it. Throws
// ConfigError.
std::string launch_text(const std::string& argument);

// Throws ConfigError with every problem of the line: shell, engine, version, flags and values.
Launch parse_launch(std::string_view line, const LaunchOptions& options = {});

// One flag changed as if typed on the line (`flag` without dashes, or any of its aliases), checked
// alike. For sweeps and limits. Throws ConfigError.
void set_flag(Launch& launch, std::string_view flag, std::string_view value);

// The canonical name of a flag as a person writes it: without dashes, "_" for "-", any alias, a
// short form ("tp"). Throws ConfigError with the nearest name, and with the versions that have it.
std::string canonical_flag(const Launch& launch, std::string_view name);

// A launch as JSON and back. Reading checks names and types against the flag table of the engine
// and throws ConfigError.
OrderedJson to_json(const Launch& launch);
Launch launch_from_json(const Json& json, const std::string& source);

}  // namespace oomcast::launch
