// A sweep: all points of a grid, the best of them by several measures at once, and its tables.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/search/grid.hpp"
#include "sim/search/workers.hpp"

namespace oomcast::search {

// What a point is judged by.
struct Measure {
  std::string name;  // its column
  bool more_is_better = true;
  // Empty where the point has no such figure.
  std::function<std::optional<double>(const PointResult&)> of;
};
// kv_tokens_total, headroom_bytes, gpus, cost_per_hour; of replays goodput, latencies too.
std::vector<Measure> measures(bool replays, std::optional<double> cost_per_gpu_hour);

struct Sweep {
  Grid grid;
  bool replays = false;
  std::optional<double> cost_per_gpu_hour;
  std::vector<PointResult> results;  // by point
  std::vector<Measure> judged_by;
  std::vector<std::size_t>
      front;  // points no other is as good as in all measures and better in one
};

// Points that fit and that no other point is at least as good as in every measure and better in
// one. Ascending.
std::vector<std::size_t> pareto_front(const std::vector<PointResult>& results,
                                      const std::vector<Measure>& measures);

// One column of points.csv beside the varied settings.
struct Column {
  std::string name;
  std::function<OrderedJson(const PointResult&)> value;
};
std::vector<Column> columns(const Sweep& sweep);

// points.csv: varied settings, columns, and whether the point is on the front.
std::string points_csv(const Sweep& sweep);
// {"schema": "oomcast.sweep/1", ...}
OrderedJson sweep_json(const Sweep& sweep);
// At most `rows` points: the front first, then the others in order.
std::string sweep_text(const Sweep& sweep, std::size_t rows);

}  // namespace oomcast::search
