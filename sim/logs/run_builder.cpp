#include "sim/logs/run_builder.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/units_text.hpp"
#include "sim/logs/derived.hpp"
#include "sim/logs/log_reader.hpp"

namespace oomcast::logs {
namespace {

constexpr std::size_t kMostTextBytes = std::size_t{64} << 10;
constexpr std::size_t kMostMessageBytes = 2000;

struct Number {
  double value = 0;
  double half_step = 0;
};

// "14.99" is 14.99 +- 0.005.
std::optional<Number> printed_number(std::string_view printed) {
  std::string digits(printed);
  digits.erase(std::remove(digits.begin(), digits.end(), ','), digits.end());
  const auto value = parse_number(digits);
  if (!value) {
    return std::nullopt;
  }
  const std::size_t dot = digits.find('.');
  const std::size_t places = dot == std::string::npos ? 0 : digits.size() - dot - 1;
  return Number{*value, 0.5 * std::pow(10.0, -static_cast<double>(places))};
}

std::optional<Number> in_base_unit(std::string_view printed, Unit unit) {
  if (unit == Unit::kAsWritten) {
    const auto bytes = parse_torch_size(printed);
    return bytes ? std::optional(Number{static_cast<double>(bytes->count()), 0}) : std::nullopt;
  }
  auto number = printed_number(printed);
  if (!number) {
    return std::nullopt;
  }
  const auto scale = [&](double factor) {
    number->value *= factor;
    number->half_step *= factor;
  };
  switch (unit) {
    case Unit::kGib:
      scale(static_cast<double>(kGiB.count()));
      break;
    case Unit::kMib:
      scale(static_cast<double>(kMiB.count()));
      break;
    case Unit::kPercent:
      scale(0.01);
      break;
    case Unit::kNone:
    case Unit::kByte:
    case Unit::kAsWritten:
      break;
  }
  return number;
}

// No card, count or ratio of a serving engine is larger.
bool is_possible(Figure figure, double value) {
  constexpr double kMostBytes = 1125899906842624.0;  // 1 PiB
  constexpr double kMostCount = 1e12;
  constexpr double kMostRatio = 1e9;
  const double most = measure_of(figure) == Measure::kBytes   ? kMostBytes
                      : measure_of(figure) == Measure::kCount ? kMostCount
                                                              : kMostRatio;
  return std::abs(value) <= most;
}

// Letters of the log in a message that may be printed as UTF-8 JSON.
std::string shortened(std::string_view line, std::size_t most) {
  std::string out(line.substr(0, most));
  const auto is_inside = [](char letter) {
    return (static_cast<unsigned char>(letter) & 0xc0U) == 0x80U;
  };
  if (line.size() > most) {
    // Not in the middle of a letter.
    while (!out.empty() && is_inside(line[out.size()])) {
      out.pop_back();
    }
    out += "...";
  }
  return out;
}

}  // namespace

RunBuilder::RunBuilder(std::string stream, std::int64_t line) {
  run_.stream = std::move(stream);
  run_.first_line = line;
  run_.last_line = line;
}

std::size_t RunBuilder::rank_index(const std::string& label) {
  const auto found = std::find(run_.ranks.begin(), run_.ranks.end(), label);
  if (found != run_.ranks.end()) {
    return static_cast<std::size_t>(found - run_.ranks.begin());
  }
  if (run_.ranks.size() >= kMostRanks) {
    return 0;
  }
  run_.ranks.push_back(label);
  return run_.ranks.size() - 1;
}

bool RunBuilder::has_begun() const {
  const auto phase = run_.phase();
  return (phase && *phase > Phase::kContext) || !run_.failures.empty();
}

void RunBuilder::set_text(Text which, std::string_view value, std::int64_t line, Again again) {
  TextReading& text = run_.texts[static_cast<std::size_t>(which)];
  if (text.line > 0 && again == Again::kKeep) {
    return;
  }
  text.value = shortened(value, kMostTextBytes);
  text.line = line;
}

void RunBuilder::take(const Match& match, std::string_view line, const std::string& rank,
                      std::int64_t number, std::int64_t& odd_numbers) {
  const Row& row = *match.row;
  const std::size_t index = rank_index(rank);
  run_.last_line = number;
  narrow_versions(row);
  for (std::size_t i = 0; i < row.capture_count; ++i) {
    const std::string_view printed = match.groups[i];
    if (printed.empty()) {
      continue;
    }
    if (const Text* which = std::get_if<Text>(&row.captures[i].field)) {
      set_text(*which, printed, number, row.captures[i].again);
    } else {
      take_figure(row.captures[i], printed, index, number, odd_numbers);
    }
  }
  if (row.enters) {
    enter(row, index, number);
  }
  if (row.failure) {
    fail(row, line, index, number);
  }
}

void RunBuilder::take_figure(const Capture& capture, std::string_view printed, std::size_t rank,
                             std::int64_t number, std::int64_t& odd_numbers) {
  Figure figure = std::get<Figure>(capture.field);
  const auto value = in_base_unit(printed, capture.unit);
  if (!value || !is_possible(figure, value->value)) {
    ++odd_numbers;
    return;
  }
  Again again = capture.again;
  if (capture.later && places_.contains({figure, rank})) {
    figure = *capture.later;
    again = Again::kAdd;
  }
  store(figure, again, {figure, rank, value->value, value->half_step, number, false});
}

void RunBuilder::store(Figure figure, Again again, const Reading& reading) {
  const auto [place, is_new] =
      places_.try_emplace(std::pair(figure, reading.rank), run_.readings.size());
  if (is_new) {
    run_.readings.push_back(reading);
    return;
  }
  Reading& stored = run_.readings[place->second];
  switch (again) {
    case Again::kKeep:
      break;
    case Again::kReplace:
      stored = reading;
      break;
    case Again::kAdd:
      stored.value += reading.value;
      stored.half_step += reading.half_step;
      break;
    case Again::kMost:
      if (reading.value > stored.value) {
        stored = reading;
      }
      break;
  }
}

void RunBuilder::enter(const Row& row, std::size_t rank, std::int64_t number) {
  if (row.frame) {
    frames_.try_emplace(rank, *row.enters);
    return;
  }
  frames_.erase(rank);
  std::int64_t& line = run_.phase_lines[static_cast<std::size_t>(*row.enters)];
  line = line == 0 ? number : line;
}

void RunBuilder::fail(const Row& row, std::string_view line, std::size_t rank,
                      std::int64_t number) {
  // One line may match several rows.
  if (number == last_failed_line_ && *row.failure == last_failed_kind_) {
    return;
  }
  last_failed_line_ = number;
  last_failed_kind_ = *row.failure;
  Failure failure;
  failure.kind = *row.failure;
  failure.rank = rank;
  failure.line = number;
  failure.message = shortened(line, kMostMessageBytes);
  failure.oom = read_torch_oom(line);
  failure.phase = run_.phase().value_or(Phase::kContext);
  if (row.failed_in) {
    failure.phase = *row.failed_in;
  } else if (const auto frame = frames_.find(rank); frame != frames_.end()) {
    failure.phase = frame->second;
  }
  frames_.erase(rank);
  // Once it served, any phase is serving.
  const bool served = run_.phase_lines[static_cast<std::size_t>(Phase::kReady)] > 0 ||
                      run_.phase_lines[static_cast<std::size_t>(Phase::kRuntime)] > 0;
  if (failure.kind == FailureKind::kStartupOom &&
      (failure.phase >= Phase::kReady || (served && !row.failed_in))) {
    failure.kind = FailureKind::kRuntimeOom;
    failure.phase = Phase::kRuntime;
  }
  for (Failure& known : run_.failures) {
    // The same error travels up through the processes.
    if (known.kind == failure.kind && known.oom == failure.oom && (failure.oom || row.failed_in)) {
      ++known.repeats;
      return;
    }
  }
  if (run_.failures.size() < kMostFailures) {
    run_.failures.push_back(std::move(failure));
  } else {
    ++run_.further_failures;
  }
}

void RunBuilder::narrow_versions(const Row& row) {
  if (row.since && (!run_.worded_since || *run_.worded_since < *row.since)) {
    run_.worded_since = row.since;
  }
  if (row.until && (!run_.worded_until || *run_.worded_until > *row.until)) {
    run_.worded_until = row.until;
  }
}

EngineRun RunBuilder::finish() {
  derive_figures(run_);
  return std::move(run_);
}

}  // namespace oomcast::logs
