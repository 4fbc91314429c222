// How far a setting can go: the largest value that holds and the next one that does not, both
// simulated.
//
// A setting need not be monotone (more memory for the KV cache first makes a server start, then
// takes what graphs need): the range is looked over first, and every change between holding and not
// is narrowed down by bisection. What changes twice between two looks is missed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/search/axis.hpp"
#include "sim/search/point.hpp"

namespace oomcast::search {

// What ends the search: "oom", "preemption", "kv_full", or a time of the finished requests and its
// bound, which those that were given up exceed, "ttft_p99>2s", "tpot>50ms" (without a percentile:
// the 99th).
class Criterion {
 public:
  // Throws ConfigError, naming the choices.
  explicit Criterion(const std::string& text);

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] bool needs_workload() const { return needs_workload_; }
  // The point does all its work within the bound.
  [[nodiscard]] bool holds(const PointResult& point) const;
  // What broke it, for a point for which it does not hold: an outcome's name, or the criterion's.
  [[nodiscard]] std::string broken_by(const PointResult& point) const;

 private:
  std::string text_;
  std::string name_;
  bool needs_workload_ = false;
  std::function<bool(const ServingFigures&)> holds_;
};

// The values looked at: low, low + step, ... up to high.
struct Range {
  Decimal low;
  Decimal high;
  Decimal step{1, 0};

  [[nodiscard]] std::int64_t count() const;
  [[nodiscard]] std::string at(std::int64_t index) const;
};
// "64:4096" or "0.5:0.99+0.01". Adds to `problems`.
std::optional<Range> parse_range(std::string_view text, const Decimal& step, Problems& problems);

// A change between values that hold and that do not.
struct Edge {
  std::string holds;
  std::string breaks;    // its neighbour
  bool is_upper = true;  // what breaks is above
  PointResult broken;
};

struct Boundary {
  std::vector<Edge> edges;  // rising
  bool low_holds = false;
  bool high_holds = false;
  PointResult at_low;
  int evaluations = 0;

  // The edge above the largest values that hold, if there is one.
  [[nodiscard]] const Edge* upper() const;
};

using Evaluate = std::function<PointResult(const std::string& value)>;

// `anchor`: a value that is likely to hold, such as today's; looked at first if in the range.
Boundary find_boundary(const Range& range, const Criterion& criterion, const Evaluate& evaluate,
                       std::optional<double> anchor = std::nullopt);

}  // namespace oomcast::search
