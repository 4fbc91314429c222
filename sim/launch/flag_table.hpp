// The flags of an engine by version, read from models/engines/<engine>/flags.json: a new version's
// flags and defaults are rows of that file.
//
// A flag exists in versions from `since` on and before `removed`; a missing bound is open. Values
// that changed (defaults, choices, short forms) carry the same two bounds.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/core/version.hpp"
#include "sim/launch/launch.hpp"

namespace oomcast::launch {

enum class FlagType {
  kBoolean,      // --flag, --no-flag
  kInteger,      // -4, 16
  kCount,        // 8192, 8k (1000), 8K (1024)
  kCountOrAuto,  // kCount, or -1 / "auto", read as -1
  kNumber,
  kText,
  kJson,  // an object; also dotted: --flag.key value
  kIntegers,
  kTexts,
};

enum class Effect {
  kMemory,
  kScheduling,
  kLaunch,  // read here and kept elsewhere: the model's name
  kNone,    // passed over
};

struct VersionRange {
  std::optional<Version> since;
  std::optional<Version> removed;

  [[nodiscard]] bool contains(const Version& version) const;
  // "from 0.31.0 on", "before 0.12.0", "from 0.18.0 on and before 0.25.0"
  [[nodiscard]] std::string describe() const;
};

struct FlagChoice {
  Json value;
  VersionRange versions;
};

struct FlagAlias {
  std::string name;  // with its dashes: "--device-memory-utilization", "-tp"
  VersionRange versions;
};

struct FlagSpec {
  std::string name;
  FlagType type = FlagType::kText;
  Effect effect = Effect::kNone;
  std::string text;  // one line: what it changes
  VersionRange versions;
  std::vector<FlagAlias> aliases;
  std::vector<FlagChoice> defaults;  // the first that contains the version; none: null
  std::vector<FlagChoice> choices;   // empty: any value
  bool open_choices = false;         // other values are possible (plug-ins): a warning, no error
  std::optional<double> low;
  std::optional<double> high;
  bool low_is_open = false;   // low itself is not allowed
  bool high_is_open = false;  // high itself is not allowed
  // A bare integer or word given to a JSON flag stands for this key (`-O3` = {"level":3} in 0.11).
  std::vector<FlagChoice> bare_key;
  // "image=2,video=0" for {"image":2,"video":0}.
  bool pairs = false;
  // What a plan does not know: a launch that asks for it is planned as if it had not, with a
  // warning, or refused: "a launch without REFUSED". `instead`: what to do.
  bool modelled = true;
  std::string refused;
  std::string instead;
  std::vector<Json> harmless;  // values beside its default that do not ask for anything
  // A short form with an attached dot (`-O.key=value`) writes into this JSON flag.
  std::string dotted;

  // Kept in Launch::flags.
  [[nodiscard]] bool is_kept() const {
    return effect == Effect::kMemory || effect == Effect::kScheduling;
  }
  [[nodiscard]] Json default_in(const Version& version) const;
  // Whether a value asks for more than the feature being off.
  [[nodiscard]] bool asks(const Json& value, const Version& version) const;
  [[nodiscard]] std::string bare_key_in(const Version& version) const;
};

// An environment variable that stands for a flag, or deserves a warning.
struct VariableSpec {
  std::string name;
  std::string flag;  // may be empty
  VersionRange versions;
  std::string value;    // the warning holds for this value only; empty: for any
  std::string warning;  // may be empty
};

// A flag's name as it can be typed, in one version.
struct Spelling {
  const FlagSpec* flag = nullptr;
  bool negated = false;  // --no-flag
};

// How the flags of one version are written.
struct Spellings {
  std::map<std::string, Spelling, std::less<>> long_forms;   // "--max-num-seqs"
  std::map<std::string, Spelling, std::less<>> short_forms;  // "-tp"
};

class FlagTable {
 public:
  // Throws ConfigError for a malformed table (it may come from the user's data folder).
  FlagTable(const Json& json, const std::string& source);

  // As messages call the engine: "vLLM".
  [[nodiscard]] const std::string& engine_name() const { return engine_name_; }
  [[nodiscard]] const std::vector<FlagSpec>& flags() const { return flags_; }
  [[nodiscard]] const std::vector<VariableSpec>& variables() const { return variables_; }
  // Does a variable of this name matter to memory or scheduling?
  [[nodiscard]] bool variable_matters(std::string_view name) const;
  // By canonical name, whatever the version; nullptr if no version has it.
  [[nodiscard]] const FlagSpec* find(std::string_view name) const;
  // Found once a version: sweeps set flags by the thousand. Any thread may ask.
  [[nodiscard]] const Spellings& spellings(const Version& version) const;

 private:
  struct KnownSpellings {
    std::mutex mutex;
    std::map<Version, Spellings> by_version;
  };
  [[nodiscard]] Spellings find_spellings(const Version& version) const;

  std::string engine_name_;
  std::vector<FlagSpec> flags_;
  std::vector<VariableSpec> variables_;
  std::vector<std::string> variable_prefixes_;
  std::unordered_map<std::string, std::size_t> index_;
  std::unique_ptr<KnownSpellings> known_ = std::make_unique<KnownSpellings>();
};

// The table of an engine, read once. nullptr for an engine without flag data yet.
const FlagTable* flag_table(Engine engine);

struct KnownVersions {
  std::vector<Version> versions;  // ascending; the last is the newest known
  Version oldest_accepted;        // older ones are refused
};
const KnownVersions& known_versions(Engine engine);

}  // namespace oomcast::launch
