#include "sim/report/strips.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/core/units_text.hpp"

namespace oomcast {
namespace {

constexpr std::size_t kWidth = 64;

using Measure = std::int64_t (*)(const TimelineRow&);

// The most within each slice of the run. A slice without a row had no step, and shows nothing.
std::array<std::int64_t, kWidth> most_by_slice(const std::vector<TimelineRow>& rows,
                                               Measure measure) {
  std::array<std::int64_t, kWidth> most{};
  const double end = static_cast<double>(rows.back().at.since_start().count() + 1);
  for (const TimelineRow& row : rows) {
    const double part = static_cast<double>(row.at.since_start().count()) / end;
    const auto slice =
        std::min(static_cast<std::size_t>(part * static_cast<double>(kWidth)), kWidth - 1);
    most[slice] = std::max(most[slice], measure(row));
  }
  return most;
}

std::string strip(const char* name, const std::vector<TimelineRow>& rows, Measure measure,
                  const std::string& of_peak) {
  const auto most = most_by_slice(rows, measure);
  const std::int64_t peak = *std::max_element(most.begin(), most.end());
  std::vector<double> shares(kWidth, 0.0);
  for (std::size_t i = 0; i < kWidth && peak > 0; ++i) {
    shares[i] = static_cast<double>(most[i]) / static_cast<double>(peak);
  }
  return fmt::format("  {:<12}{}  {}\n", name, sparkline(shares, kWidth),
                     of_peak.empty() ? format_count(peak) : of_peak);
}

// KV in use at its highest.
struct Fullest {
  Bytes used;
  Bytes pool;
  SimTime at;
};

std::string strips(const std::vector<TimelineRow>& rows, const Fullest& fullest) {
  const double share = fullest.pool > Bytes{0} ? 100.0 * static_cast<double>(fullest.used.count()) /
                                                     static_cast<double>(fullest.pool.count())
                                               : 0.0;
  std::string out = fmt::format("\nOver {} (a full bar is the most)\n",
                                format_span(Nanos{rows.back().at.since_start().count()}));
  out += strip(
      "KV in use", rows, [](const TimelineRow& row) { return row.kv_used.count(); },
      fmt::format("{}, {:.1f} % of {}, at {}", format_bytes(fullest.used), share,
                  format_bytes(fullest.pool), format_span(fullest.at - SimTime{})));
  out += strip(
      "running", rows, [](const TimelineRow& row) { return row.running; }, "");
  out += strip(
      "waiting", rows, [](const TimelineRow& row) { return row.waiting; }, "");
  out += strip(
      "step tokens", rows, [](const TimelineRow& row) { return row.step_tokens; }, "");
  return out;
}

}  // namespace

std::string strips(const RunRecord& record) {
  if (record.ranks.empty() || record.ranks.front().timeline.empty()) {
    return "";
  }
  const RunTotals& totals = record.totals;
  return strips(record.ranks.front().timeline, {totals.kv_peak, totals.kv_pool, totals.kv_peak_at});
}

std::string strips(const RankRecord& rank) {
  if (rank.timeline.empty()) {
    return "\n";
  }
  const auto most = std::max_element(rank.timeline.begin(), rank.timeline.end(),
                                     [](const TimelineRow& left, const TimelineRow& right) {
                                       return left.kv_used < right.kv_used;
                                     });
  std::string out = strips(
      rank.timeline, {most->kv_used, most->kv_used + most->kv_cached + most->kv_free, most->at});
  return out + strip(
                   "KV held", rank.timeline,
                   [](const TimelineRow& row) {
                     return row.transfer ? row.transfer->kv_held.count() : 0;
                   },
                   "for transfers alone");
}
std::string sparkline(const std::vector<double>& values, std::size_t width) {
  static constexpr std::array<const char*, 9> kLevels = {" ", "▁", "▂", "▃", "▄",
                                                         "▅", "▆", "▇", "█"};
  std::string out;
  for (std::size_t i = 0; i < width && !values.empty(); ++i) {
    const std::size_t begin = i * values.size() / width;
    const std::size_t end = std::max(begin + 1, (i + 1) * values.size() / width);
    const double most = *std::max_element(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                          values.begin() + static_cast<std::ptrdiff_t>(end));
    const double clamped = std::clamp(most, 0.0, 1.0);
    // Anything above nothing shows.
    const auto level = static_cast<std::size_t>(std::ceil(clamped * 8.0));
    out += kLevels[level];
  }
  return out;
}

}  // namespace oomcast
