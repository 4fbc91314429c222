// A sweep as a table for the terminal.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "sim/core/units_text.hpp"
#include "sim/search/sweep.hpp"

namespace oomcast::search {
namespace {

using Row = std::vector<std::string>;

std::string table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      line += last ? "  " + row[i] : fmt::format(" {:>{}}", row[i], widths[i] + 1);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

Row heading(const Sweep& sweep) {
  Row row = sweep.grid.names();
  row.insert(row.begin(), "");
  for (const char* name : {"gpus", "KV tokens", "peak", "headroom"}) {
    row.emplace_back(name);
  }
  if (sweep.replays) {
    for (const char* name : {"tokens/s", "TTFT p99", "TPOT p99", "preempted"}) {
      row.emplace_back(name);
    }
  }
  row.emplace_back("outcome");
  return row;
}

std::string outcome_text(const PointResult& point) {
  if (point.fits()) {
    return "fits";
  }
  std::string text(name_of(point.kind));
  if (!point.phase.empty()) {
    text += " in " + point.phase;
  }
  if (point.short_by > Bytes{0}) {
    text += fmt::format(", {} short by {}", point.leaf.empty() ? "memory" : point.leaf,
                        format_bytes(point.short_by));
  } else if (point.kind == OutcomeKind::kConfigRejected) {
    text += ": " + point.message.substr(0, std::min<std::size_t>(point.message.find('\n'), 90));
  }
  return text;
}

Row row_of(const Sweep& sweep, std::size_t point, bool on_front) {
  const PointResult& result = sweep.results[point];
  Row row = {on_front ? "*" : ""};
  for (const auto& [name, value] : sweep.grid.at(point)) {
    row.push_back(value);
  }
  row.push_back(result.gpus > 0 ? std::to_string(result.gpus) : "-");
  const auto tokens = result.kv_tokens_total();
  row.push_back(tokens ? format_count(*tokens) : "-");
  row.push_back(result.ranks.empty() ? "-" : format_bytes(result.peak()));
  row.push_back(result.ranks.empty() ? "-" : format_bytes(result.headroom()));
  if (sweep.replays) {
    const auto& serving = result.serving;
    row.push_back(serving ? fmt::format("{:.0f}", serving->goodput) : "-");
    const bool has_times = serving && serving->finished > 0;
    row.push_back(has_times ? fmt::format("{:.2f} s", serving->ttft_p99) : "-");
    row.push_back(has_times ? fmt::format("{:.1f} ms", serving->tpot_p99 * 1000) : "-");
    row.push_back(serving ? format_count(serving->preemptions) : "-");
  }
  row.push_back(outcome_text(result));
  return row;
}

}  // namespace

std::string sweep_text(const Sweep& sweep, std::size_t rows) {
  const std::set<std::size_t> front(sweep.front.begin(), sweep.front.end());
  std::vector<std::size_t> shown;
  if (sweep.results.size() > rows) {
    shown.assign(sweep.front.begin(),
                 sweep.front.begin() + static_cast<std::ptrdiff_t>(std::min(rows, front.size())));
  }
  for (std::size_t point = 0; point < sweep.results.size() && shown.size() < rows; ++point) {
    if (sweep.results.size() <= rows || front.count(point) == 0) {
      shown.push_back(point);
    }
  }
  std::sort(shown.begin(), shown.end());
  std::vector<Row> lines = {heading(sweep)};
  for (const std::size_t point : shown) {
    lines.push_back(row_of(sweep, point, front.count(point) != 0));
  }
  std::string out = table(lines);
  if (shown.size() < sweep.results.size()) {
    out += fmt::format("  ... {} more points\n", sweep.results.size() - shown.size());
  }
  std::map<std::string_view, std::int64_t> kinds;
  for (const PointResult& result : sweep.results) {
    ++kinds[name_of(result.kind)];
  }
  out += fmt::format("\n{} points:", format_count(static_cast<std::int64_t>(sweep.results.size())));
  for (const auto& [kind, count] : kinds) {
    out += fmt::format(" {} {},", format_count(count), kind);
  }
  out.back() = '\n';
  std::string names;
  for (const Measure& measure : sweep.judged_by) {
    names += fmt::format("{}{} {}", names.empty() ? "" : ", ",
                         measure.more_is_better ? "more" : "less", measure.name);
  }
  out += fmt::format("* none is better in all of: {} ({} points)\n", names, sweep.front.size());
  return out;
}

}  // namespace oomcast::search
