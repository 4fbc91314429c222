// The lines of engines as data: pattern -> figures, with the versions that print them. A line that
// a new release words differently is a new row.
//
// Patterns are RE2 (linear time on any line), searched anywhere in the line: prefixes of loggers,
// containers and schedulers need no pattern of their own. A line may match many rows. `{n}` stands
// for a printed number, `{d}` for one with a decimal point, `{size}` for a number with its unit.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>

#include "sim/core/version.hpp"
#include "sim/launch/launch.hpp"
#include "sim/logs/figures.hpp"

namespace oomcast::logs {

enum class Unit : std::uint8_t {
  kNone,  // counts and ratios
  kGib,   // printed as GiB, GB or G: 2^30
  kMib,
  kByte,
  kAsWritten,  // the capture ends in its unit: "150.00 MiB"
  kPercent,    // a ratio
};

// What becomes of a further reading of the same figure on the same rank.
enum class Again : std::uint8_t { kReplace, kKeep, kAdd, kMost };

struct Capture {
  std::variant<Figure, Text> field = Figure::kTotal;
  Unit unit = Unit::kNone;
  Again again = Again::kReplace;
  // Where a further reading goes instead, if not to the same figure.
  std::optional<Figure> later = std::nullopt;
};

inline constexpr std::size_t kMostCaptures = 6;

struct Row {
  std::string_view pattern;
  // In the order of the pattern's groups; the first `capture_count` count.
  std::array<Capture, kMostCaptures> captures{};
  std::size_t capture_count = 0;

  // Versions that print it; open where absent.
  std::optional<Version> since = std::nullopt;
  std::optional<Version> until = std::nullopt;  // inclusive

  std::optional<Phase> enters = std::nullopt;  // under way once this was printed
  std::optional<FailureKind> failure = std::nullopt;
  std::optional<Phase> failed_in = std::nullopt;  // absent: the phase under way
  bool starts = false;                            // first line of a start
  bool frame = false;                             // a traceback frame: `enters` holds for its error
};

struct Table {
  std::optional<launch::Engine> engine;  // none: PyTorch and CUDA, whatever the engine
  std::span<const Row> rows;
};

// All tables, in the order in which their rows are tried.
std::span<const Table> log_tables();
// Short notes as people write them beside logs ("weights 15.11; KV 442750 K 27.02 V 27.02").
inline constexpr std::size_t kNoteTables = 3;
std::span<const Table, kNoteTables> note_tables();

std::span<const Row> vllm_rows();
std::span<const Row> sglang_rows();
std::span<const Row> trtllm_rows();
std::span<const Row> torch_rows();

// ---- building rows ------------------------------------------------------------------------------

namespace rows {

constexpr Version v(int major, int minor, int patch = 0) { return Version{{major, minor, patch}}; }

constexpr Capture gib(Figure figure) { return {figure, Unit::kGib}; }
constexpr Capture mib(Figure figure) { return {figure, Unit::kMib}; }
constexpr Capture count(Figure figure) { return {figure, Unit::kNone}; }
constexpr Capture text(Text text) { return {text, Unit::kNone}; }
constexpr Capture again(Capture capture, Again how) {
  capture.again = how;
  return capture;
}
constexpr Capture then(Capture capture, Figure later) {
  capture.later = later;
  return capture;
}

template <typename... Captures>
constexpr Row row(std::string_view pattern, Captures... captures) {
  static_assert(sizeof...(Captures) <= kMostCaptures);
  Row made;
  made.pattern = pattern;
  made.captures = {captures...};
  made.capture_count = sizeof...(Captures);
  return made;
}
constexpr Row since(Row made, Version version) {
  made.since = version;
  return made;
}
constexpr Row until(Row made, Version version) {
  made.until = version;
  return made;
}
constexpr Row enters(Row made, Phase phase) {
  made.enters = phase;
  return made;
}
constexpr Row starts(Row made) {
  made.starts = true;
  return made;
}
constexpr Row fails(Row made, FailureKind kind, std::optional<Phase> phase = std::nullopt) {
  made.failure = kind;
  made.failed_in = phase;
  return made;
}
// A frame of a Python traceback: the error that follows happened in `phase`.
constexpr Row frame(std::string_view pattern, Phase phase) {
  Row made;
  made.pattern = pattern;
  made.enters = phase;
  made.frame = true;
  return made;
}

}  // namespace rows
}  // namespace oomcast::logs
