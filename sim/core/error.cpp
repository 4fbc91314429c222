#include "sim/core/error.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace oomcast {
namespace {

constexpr std::size_t kShownValue = 80;

// A terminal obeys control characters: they are spelled out.
void append_letter(std::string& out, char letter) {
  const auto code = static_cast<unsigned char>(letter);
  if (code < 0x20 || code == 0x7f) {
    out += fmt::format("\\x{:02x}", code);
  } else {
    out += letter;
  }
}

// One line, printable, bounded: a value may be 100 kB of binary junk.
std::string shown(std::string_view value) {
  std::string out;
  for (const char letter : value) {
    if (out.size() >= kShownValue) {
      return out + "…";
    }
    append_letter(out, letter);
  }
  return out;
}

// Lines of our own, which may quote what others wrote.
std::string shown_lines(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    if (letter == '\n') {
      out += letter;
    } else {
      append_letter(out, letter);
    }
  }
  return out;
}

std::string all_problems(const std::vector<Problem>& problems) {
  std::string out;
  for (const Problem& problem : problems) {
    out += (out.empty() ? "" : "\n") + to_string(problem);
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter + ('a' - 'A')) : letter;
  });
  return out;
}

std::size_t edit_distance(std::string_view left, std::string_view right) {
  std::vector<std::size_t> row(right.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= left.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= right.size(); ++j) {
      const std::size_t substitute = diagonal + (left[i - 1] == right[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

CheckHook check_hook = nullptr;

}  // namespace

std::string to_string(const Problem& problem) {
  std::string out = shown(problem.source);
  if (!problem.place.empty()) {
    out += ": " + shown(problem.place);
  }
  out += ": ";
  if (!problem.value.empty()) {
    out += "found `" + shown(problem.value) + "`, ";
  }
  out += "expected " + shown_lines(problem.expected);
  if (!problem.hint.empty()) {
    out += " (" + shown_lines(problem.hint) + ")";
  }
  return out;
}

ConfigError::ConfigError(std::vector<Problem> problems)
    : std::runtime_error(all_problems(problems)), problems_(std::move(problems)) {}

void Problems::raise_if_any() const {
  if (!found_.empty()) {
    throw ConfigError(found_);
  }
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& choices) {
  constexpr std::size_t kLongestName = 128;
  if (name.empty() || name.size() > kLongestName) {
    return {};
  }
  const std::string wanted = lower(name);
  const std::size_t limit = std::max<std::size_t>(1, wanted.size() / 3);
  std::string best;
  std::size_t best_distance = limit + 1;
  for (const std::string& choice : choices) {
    const std::size_t distance = edit_distance(wanted, lower(choice));
    if (distance < best_distance) {
      best_distance = distance;
      best = choice;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& choices) {
  const std::string nearest = nearest_name(name, choices);
  return nearest.empty() ? "" : "did you mean `" + nearest + "`?";
}

CheckHook set_check_hook(CheckHook hook) { return std::exchange(check_hook, hook); }

namespace detail {
void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fflush(stdout);
  fmt::print(stderr, "oomcast: internal error at {}:{}: {} does not hold: {}\n", file, line,
             condition, message);
  if (check_hook != nullptr) {
    std::exchange(check_hook, nullptr)();
  }
  fmt::print(stderr, "This is a bug in oomcast. Please report it with the command line.\n");
  std::fflush(stderr);
  // Exit code 1 is the contract for a bug; abort() would give 134.
  std::_Exit(1);
}
}  // namespace detail

}  // namespace oomcast
