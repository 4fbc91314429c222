#include "sim/report/csv_columns.hpp"

#include <charconv>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"

namespace oomcast::report {
namespace {

constexpr std::int64_t kMostCount = std::int64_t{1} << 52;

}  // namespace

CsvColumns::CsvColumns(std::unique_ptr<workloads::LineReader> lines,
                       std::vector<std::string_view> names)
    : names_(std::move(names)) {
  const workloads::TraceHead head = workloads::peek_head(*lines);
  rows_ = workloads::open_csv(std::move(lines));
  Problems problems;
  for (const std::string_view name : names_) {
    fields_.push_back(rows_->want(name));
    if (fields_.back() < 0) {
      problems.add({rows_->name(), "line 1", "", fmt::format("a column {}", name),
                    did_you_mean(name, head.names)});
    }
  }
  problems.raise_if_any();
}

std::string_view CsvColumns::text(std::size_t column) const {
  return rows_->field(fields_[column]).value_or(std::string_view{});
}

std::int64_t CsvColumns::count(std::size_t column) const {
  const std::string_view cell = text(column);
  std::int64_t value = 0;
  const char* last = cell.data() + cell.size();
  const auto [end, error] = std::from_chars(cell.data(), last, value);
  if (error != std::errc{} || end != last || value < 0 || value > kMostCount) {
    refuse(column, cell, "a whole number from 0 to 2^52");
  }
  return value;
}

std::optional<std::int64_t> CsvColumns::instant(std::size_t column) const {
  const std::string_view cell = text(column);
  if (cell.empty()) {
    return std::nullopt;
  }
  constexpr int kNanoDigits = 9;
  constexpr std::int64_t kMostNanos = 9'200'000'000 * kSecond.count();
  const auto nanos = workloads::scaled_decimal(cell, kNanoDigits);
  if (!nanos || *nanos < 0 || *nanos > kMostNanos) {
    refuse(column, cell, "seconds from 0 to 9.2e9");
  }
  return nanos;
}

void CsvColumns::refuse(std::size_t column, std::string_view value, std::string expected) const {
  throw ConfigError(Problem{rows_->name(), fmt::format("{} {}", rows_->place(), names_[column]),
                            std::string(value), std::move(expected), ""});
}

void CsvColumns::refuse_row(std::string value, std::string expected) const {
  throw ConfigError(
      Problem{rows_->name(), rows_->place(), std::move(value), std::move(expected), ""});
}

}  // namespace oomcast::report
