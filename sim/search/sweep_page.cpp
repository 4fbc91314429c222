#include "sim/search/sweep_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sim/report/html.hpp"

namespace oomcast::search {
namespace {

constexpr std::size_t kMostPoints = 10'000;

// All of the front, and every n-th of the others.
std::vector<std::size_t> points_shown(const Sweep& sweep, const std::set<std::size_t>& front) {
  const std::size_t every = sweep.results.size() / kMostPoints + 1;
  std::vector<std::size_t> shown;
  for (std::size_t point = 0; point < sweep.results.size(); ++point) {
    if (point % every == 0 || front.count(point) != 0) {
      shown.push_back(point);
    }
  }
  return shown;
}

}  // namespace

std::string sweep_page(const Sweep& sweep, const EngineDeployment& base) {
  const std::set<std::size_t> front(sweep.front.begin(), sweep.front.end());
  const std::vector<Column> all = columns(sweep);
  OrderedJson data;
  data["leaf_names"] = OrderedJson::array();
  data["title"] = "Sweep of " + base.launch.model;
  data["subtitle"] =
      fmt::format("{}  ·  {} {}  ·  {}", base.gpu.name, launch::to_string(base.launch.engine),
                  base.launch.version_text, sweep.replays ? "replays of a workload" : "startups");
  data["footer"] = "oomcast. points.csv and sweep.json beside this page have every point.";
  data["varied"] = sweep.grid.names();
  data["total"] = sweep.results.size();
  data["judged_by"] = OrderedJson::array();
  for (const Measure& measure : sweep.judged_by) {
    data["judged_by"].push_back(
        {{"name", measure.name}, {"better", measure.more_is_better ? "more" : "less"}});
  }
  data["columns"] = OrderedJson::array();
  for (const Column& column : all) {
    data["columns"].push_back({{"name", column.name}});
  }
  OrderedJson& points = data["points"] = OrderedJson::array();
  for (const std::size_t point : points_shown(sweep, front)) {
    OrderedJson settings = OrderedJson::array();
    for (const auto& [name, value] : sweep.grid.at(point)) {
      settings.push_back(value);
    }
    OrderedJson values = OrderedJson::array();
    for (const Column& column : all) {
      values.push_back(column.value(sweep.results[point]));
    }
    points.push_back({std::move(settings), std::move(values), front.count(point)});
  }
  return report::page(data["title"].get<std::string>(), "sweep.html", "sweep.js",
                      report::data_text(data));
}

}  // namespace oomcast::search
