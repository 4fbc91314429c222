// Three kinds of failure, three mechanisms.
//   The user's input is wrong     -> ConfigError, all problems at once, exit 2.
//   oomcast itself is wrong       -> OOMCAST_CHECK aborts with file, line and the values, exit 1.
//   The simulated engine ran out  -> an outcome in the record, never an exception, exit 3.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace oomcast {

// Sources of problems that are no files.
inline constexpr const char* kCommandLine = "command line";
inline constexpr const char* kLaunchLine = "launch line";

// One thing that is wrong with an input.
struct Problem {
  std::string source;    // file name, or "command line"
  std::string place;     // line number, JSON path or flag; may be empty
  std::string value;     // what was found; shortened when shown, may be empty
  std::string expected;  // what would have been right
  std::string hint;      // nearest valid name or the fix; may be empty
};

// "config.json: hidden_size: found "x", expected a positive integer (did you mean ...?)"
std::string to_string(const Problem& problem);

class ConfigError : public std::runtime_error {
 public:
  explicit ConfigError(std::vector<Problem> problems);
  explicit ConfigError(Problem problem) : ConfigError(std::vector<Problem>{std::move(problem)}) {}

  [[nodiscard]] const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
};

// Gathers problems so that the user sees all of them in one run.
class Problems {
 public:
  void add(Problem problem) { found_.push_back(std::move(problem)); }
  [[nodiscard]] bool empty() const { return found_.empty(); }
  [[nodiscard]] const std::vector<Problem>& found() const { return found_; }
  void take(const ConfigError& error) {
    found_.insert(found_.end(), error.problems().begin(), error.problems().end());
  }
  // Throws ConfigError if anything was found.
  void raise_if_any() const;

 private:
  std::vector<Problem> found_;
};

// The choice nearest to `name` by edit distance (case-blind), if it is near enough to be a slip.
std::string nearest_name(std::string_view name, const std::vector<std::string>& choices);
// " (did you mean `x`?)" or "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& choices);

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}

// Called once before an OOMCAST_CHECK aborts, to print what only the caller knows (seed, simulated
// time, ledger table). Returns the former hook.
using CheckHook = void (*)();
CheckHook set_check_hook(CheckHook hook);

}  // namespace oomcast

// Always on, also in Release: a wrong number is worse than a slow one.
#define OOMCAST_CHECK(condition, ...)                                                            \
  do {                                                                                           \
    if (!(condition)) [[unlikely]] {                                                             \
      ::oomcast::detail::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
    }                                                                                            \
  } while (false)
