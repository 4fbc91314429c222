// What a log tells, engine start by engine start.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/core/version.hpp"
#include "sim/launch/launch.hpp"
#include "sim/logs/figures.hpp"
#include "sim/logs/torch_oom.hpp"

namespace oomcast::logs {

// A printed figure.
struct Reading {
  Figure figure = Figure::kTotal;
  std::size_t rank = 0;  // index into EngineRun::ranks
  double value = 0;      // bytes, a count, or a ratio
  double half_step = 0;  // half of the last printed digit: how far the truth may lie off
  std::int64_t line = 0;
  bool derived = false;  // follows from other readings

  [[nodiscard]] Bytes bytes() const;
};

struct TextReading {
  std::string value;
  std::int64_t line = 0;  // 0: not there
};

struct Failure {
  FailureKind kind = FailureKind::kEngineError;
  Phase phase = Phase::kContext;
  std::size_t rank = 0;
  std::int64_t line = 0;
  std::string message;  // the line, shortened
  std::optional<TorchOom> oom;
  std::int64_t repeats = 0;  // further lines that say the same
};

// One start of one engine.
struct EngineRun {
  std::optional<launch::Engine> engine;
  std::string stream;  // container, pod or unit that the lines name
  std::int64_t first_line = 0;
  std::int64_t last_line = 0;
  std::array<TextReading, kTextCount> texts;
  std::vector<std::string> ranks{""};  // labels by first appearance; 0: lines of no worker
  std::vector<Reading> readings;       // one a figure and rank, in order of appearance
  std::array<std::int64_t, kPhaseCount> phase_lines{};  // first line of each phase; 0: not reached
  std::vector<Failure> failures;
  std::int64_t further_failures = 0;
  // Versions whose wording the lines have; open where absent.
  std::optional<Version> worded_since;
  std::optional<Version> worded_until;

  [[nodiscard]] const TextReading& text(Text which) const {
    return texts[static_cast<std::size_t>(which)];
  }
  [[nodiscard]] const Reading* find(Figure figure, std::size_t rank) const;
  // Of the rank; else of the lines of no worker, else of the first rank that printed it.
  [[nodiscard]] const Reading* nearest(Figure figure, std::size_t rank) const;
  // The rank with the least memory for its KV cache: the one that decides. Else the first that
  // printed a figure.
  [[nodiscard]] std::size_t deciding_rank() const;
  // The last phase entered.
  [[nodiscard]] std::optional<Phase> phase() const;
  // What ended the run; nullptr when it served. The most telling of all failures.
  [[nodiscard]] const Failure* cause() const;
};

struct EngineLog {
  std::string name;
  std::int64_t lines = 0;
  std::int64_t unreadable_bytes = 0;
  std::int64_t cut_lines = 0;    // longer than kMostLineBytes
  std::int64_t odd_numbers = 0;  // printed, but beyond what the quantity can be
  bool from_notes = false;       // a short text, read as someone's notes too
  std::vector<EngineRun> runs;
  std::int64_t further_runs = 0;
  std::string ended_early;  // why reading stopped before the end; empty if it did not
};

}  // namespace oomcast::logs
