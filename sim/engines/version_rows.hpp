// Rows of an engine's preset file that say what holds from which version on.
//
//   "rules":    {NAME: [{"since": VERSION, "value": V, ...}, ...]}
//   "measured": {NAME: {"about": ..., "source": ..., "uncertainty_mib": N, "rows": [...]}}
//
// The last row whose `since` is not above the version holds; the first also stands for older ones.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/json.hpp"
#include "sim/core/version.hpp"

namespace oomcast {

// What the host and launches cost beyond the kernels, in seconds.
struct StepCosts {
  double step = 0;
  double layer = 0;    // of each layer
  double request = 0;  // of each request scheduled
  // Of each layer of a step that holds a prompt, where FlashInfer plans its kernels on the host.
  double flashinfer_prompt_layer = 0;
};

// Everything that is missing or of a wrong type joins `problems`; values are then empty.
class VersionRows {
 public:
  // The JSON must outlive the reader; `source` names it in problems.
  VersionRows(const Json& file, std::string source, const Version& version, Problems& problems)
      : source_(std::move(source)),
        file_(file, source_, "", problems),
        version_(version),
        problems_(problems) {}

  // The whole row of a rule; nullptr when there is none.
  [[nodiscard]] const Json* rule(const std::string& key) const;
  [[nodiscard]] bool boolean(const std::string& key) const;
  [[nodiscard]] double number(const std::string& key) const;
  [[nodiscard]] std::int64_t integer(const std::string& key) const;
  [[nodiscard]] Version version(const std::string& key) const;
  template <typename Enum>
  [[nodiscard]] Enum choice(const std::string& key,
                            const std::map<std::string, Enum>& choices) const {
    const Json* row = rule(key);
    if (row == nullptr) {
      return {};
    }
    const Json& value = row->at("value");
    const auto found = value.is_string() ? choices.find(value.get<std::string>()) : choices.end();
    if (found == choices.end()) {
      problems_.add({source_, "rules." + key, value.dump(), "a known choice", ""});
      return {};
    }
    return found->second;
  }

  [[nodiscard]] Json list(const std::string& key) const;
  [[nodiscard]] std::vector<std::string> texts(const std::string& key) const;

  // A measured integer; adds "NAME = VALUE +-SPREAD: about [source]".
  [[nodiscard]] std::int64_t measured(const std::string& key,
                                      std::vector<std::string>& provenance) const;
  // From microseconds under "step_time".
  [[nodiscard]] StepCosts step_costs() const {
    return {step_time("step_us"), step_time("layer_us"), step_time("request_us"),
            step_time("flashinfer_prompt_layer_us")};
  }

 protected:
  [[nodiscard]] const JsonView& file() const { return file_; }
  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] Problems& problems() const { return problems_; }
  void complain(const std::string& key, const char* expected) const {
    problems_.add({source_, key, to_string(version_), expected, ""});
  }

 private:
  [[nodiscard]] double step_time(const std::string& key) const;
  const Json* row_of(const Json* rows, const std::string& key) const;
  template <typename T>
  T typed(const std::string& key, bool (Json::*is)() const noexcept, const char* expected) const {
    const Json* row = rule(key);
    if (row == nullptr) {
      return T{};
    }
    const Json& value = row->at("value");
    if (!(value.*is)()) {
      problems_.add({source_, "rules." + key, value.dump(), expected, ""});
      return T{};
    }
    return value.get<T>();
  }

  std::string source_;
  JsonView file_;
  Version version_;
  Problems& problems_;
};

// What `read` makes of a version, read once. Any thread may ask.
template <typename Rules>
const Rules& known_rules(const Version& version, Rules (*read)(const Version&)) {
  static std::mutex mutex;
  static std::map<Version, Rules> known;
  const std::lock_guard lock(mutex);
  const auto at = known.find(version);
  return at != known.end() ? at->second : known.emplace(version, read(version)).first->second;
}

}  // namespace oomcast
