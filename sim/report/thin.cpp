#include "sim/report/thin.hpp"

#include <algorithm>
#include <array>

#include "sim/core/error.hpp"

namespace oomcast::report {
namespace {

constexpr std::size_t kOthers = 11;
constexpr std::size_t kColumns = kLeafCount + kOthers;
using Values = std::array<std::int64_t, kColumns>;

Values values_of(const TimelineRow& row) {
  Values values{row.views.device_used.count(),
                row.kv_used.count(),
                row.running,
                row.waiting,
                row.step_tokens,
                row.views.torch_reserved.count(),
                row.views.torch_allocated.count(),
                row.views.pinned_host.count(),
                row.kv_cached.count(),
                row.kv_free.count(),
                row.preemptions};
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    values[kOthers + leaf] = row.device[leaf].count();
  }
  return values;
}

// What a slice keeps the highest and the lowest of: memory, KV blocks, running, waiting, tokens.
constexpr std::size_t kSliceMeasures = 5;
constexpr std::size_t kRowsOfSlice = 2 + 2 * kSliceMeasures;

// Indices of the highest and the lowest row of each of the first `measures` columns.
void add_extremes(const std::vector<Values>& values, std::size_t begin, std::size_t end,
                  std::size_t measures, bool lowest, std::vector<std::size_t>& kept) {
  for (std::size_t column = 0; column < measures; ++column) {
    const auto less = [column](const Values& left, const Values& right) {
      return left[column] < right[column];
    };
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = values.begin() + static_cast<std::ptrdiff_t>(end);
    kept.push_back(static_cast<std::size_t>(std::max_element(first, last, less) - values.begin()));
    if (lowest) {
      kept.push_back(
          static_cast<std::size_t>(std::min_element(first, last, less) - values.begin()));
    }
  }
}

}  // namespace

std::vector<TimelineRow> thin(const std::vector<TimelineRow>& rows, std::size_t most) {
  OOMCAST_CHECK(most >= 64, "{} rows cannot hold all peaks", most);
  if (rows.size() <= most) {
    return rows;
  }
  std::vector<Values> values;
  values.reserve(rows.size());
  std::transform(rows.begin(), rows.end(), std::back_inserter(values), values_of);
  std::vector<std::size_t> kept;
  add_extremes(values, 0, rows.size(), kColumns, false, kept);
  const std::size_t slices = (most - kColumns) / kRowsOfSlice;
  for (std::size_t slice = 0; slice < slices; ++slice) {
    const std::size_t begin = slice * rows.size() / slices;
    const std::size_t end = (slice + 1) * rows.size() / slices;
    kept.push_back(begin);
    kept.push_back(end - 1);
    add_extremes(values, begin, end, kSliceMeasures, true, kept);
  }
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  std::vector<TimelineRow> out;
  out.reserve(kept.size());
  for (const std::size_t index : kept) {
    out.push_back(rows[index]);
  }
  return out;
}

}  // namespace oomcast::report
