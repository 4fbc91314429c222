// The points of a sweep: every combination of the axes for which the conditions hold, in the order
// of the axes, the last one fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/launch/launch.hpp"
#include "sim/search/axis.hpp"
#include "sim/search/condition.hpp"
#include "sim/search/point.hpp"

namespace oomcast::search {

class Grid {
 public:
  static constexpr std::int64_t kMostPoints = 1'000'000;

  // Names become canonical; names that conditions use and no axis has are read from `launch`.
  // Throws ConfigError: unknown names, one varied twice, more than kMostPoints combinations (with
  // their number), conditions that leave nothing.
  Grid(const launch::Launch& launch, std::vector<Axis> axes,
       const std::vector<std::string>& conditions);

  [[nodiscard]] std::size_t size() const { return points_.size(); }
  [[nodiscard]] const std::vector<Axis>& axes() const { return axes_; }
  // Canonical names of all settings, axis by axis.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] Settings at(std::size_t point) const;
  // Which value of each axis the point has.
  [[nodiscard]] std::vector<std::size_t> place(std::size_t point) const;
  // Points in an order in which neighbours share most work.
  [[nodiscard]] std::vector<std::size_t> order() const;

 private:
  void name_axes(const launch::Launch& launch, Problems& problems);
  void choose(const launch::Launch& launch, const std::vector<std::string>& conditions);

  std::vector<Axis> axes_;
  std::vector<std::string> names_;
  std::vector<std::uint32_t> points_;  // numbers of the combinations kept
};

}  // namespace oomcast::search
