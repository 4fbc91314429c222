#include "sim/search/grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace oomcast::search {
namespace {

std::optional<double> number_in(const std::string& text) {
  const auto decimal = parse_decimal(text);
  return decimal ? std::optional(decimal->value()) : std::nullopt;
}

// As conditions may call them, whatever the engine's flags are called.
std::string flag_for(const std::string& name, const launch::Launch& launch) {
  static const std::map<std::string, std::string> kShort = {{"chunk", "max-num-batched-tokens"},
                                                            {"seqs", "max-num-seqs"}};
  const auto found = kShort.find(name);
  return found != kShort.end() && launch.engine == launch::Engine::kVllm ? found->second : name;
}

}  // namespace

Grid::Grid(const launch::Launch& launch, std::vector<Axis> axes,
           const std::vector<std::string>& conditions)
    : axes_(std::move(axes)) {
  Problems problems;
  name_axes(launch, problems);
  problems.raise_if_any();
  double combinations = 1;
  for (const Axis& axis : axes_) {
    combinations *= static_cast<double>(axis.size());
  }
  if (combinations > static_cast<double>(kMostPoints)) {
    throw ConfigError(Problem{kCommandLine, "--vary", fmt::format("{:.6g} points", combinations),
                              fmt::format("at most {}", kMostPoints),
                              "fewer values, or several sweeps"});
  }
  choose(launch, conditions);
}

void Grid::name_axes(const launch::Launch& launch, Problems& problems) {
  for (Axis& axis : axes_) {
    for (std::string& name : axis.names) {
      try {
        name = canonical_knob(launch, flag_for(name, launch));
      } catch (const ConfigError& error) {
        problems.take(error);
        continue;
      }
      if (std::find(names_.begin(), names_.end(), name) != names_.end()) {
        problems.add({kCommandLine, "--vary", name, "each flag once", ""});
      }
      names_.push_back(name);
    }
    if (axis.values.empty() && problems.empty()) {
      problems.add(
          {kCommandLine, "--vary", fmt::format("{}", axis.names.front()), "some values", ""});
    }
  }
  if (axes_.empty()) {
    problems.add({kCommandLine, "--vary", "", "at least one flag that varies",
                  "e.g. --vary 'max-num-seqs=64..512*2'"});
  }
}

void Grid::choose(const launch::Launch& launch, const std::vector<std::string>& texts) {
  Problems problems;
  std::vector<Condition> conditions;
  // Where each name is found: its axis and place there, or a number.
  std::map<std::string, std::pair<std::size_t, std::size_t>> varied;
  std::map<std::string, double> fixed;
  for (const std::string& text : texts) {
    try {
      conditions.emplace_back(text);
    } catch (const ConfigError& error) {
      problems.take(error);
      continue;
    }
    for (const std::string& name : conditions.back().names()) {
      std::string flag;
      try {
        flag = canonical_knob(launch, flag_for(name, launch));
      } catch (const ConfigError& error) {
        problems.take(error);
        continue;
      }
      bool found = false;
      for (std::size_t axis = 0; axis < axes_.size() && !found; ++axis) {
        const auto& names = axes_[axis].names;
        const auto at = std::find(names.begin(), names.end(), flag);
        found = at != names.end();
        if (found) {
          varied[name] = {axis, static_cast<std::size_t>(at - names.begin())};
        }
      }
      const auto at = launch.flags.find(flag);
      if (!found && (at == launch.flags.end() || !at->second.value.is_number())) {
        problems.add({kCommandLine, "--where", text, "flags with a number",
                      fmt::format("`{}` has none here; vary it or give it in the line", name)});
      } else if (!found) {
        fixed[name] = at->second.value.get<double>();
      }
    }
  }
  problems.raise_if_any();

  std::size_t combinations = 1;
  for (const Axis& axis : axes_) {
    combinations *= axis.size();
  }
  points_.reserve(conditions.empty() ? combinations : 0);
  for (std::size_t i = 0; i < combinations; ++i) {
    points_.push_back(static_cast<std::uint32_t>(i));
    const std::vector<std::size_t> where = place(points_.size() - 1);
    const auto value_of = [&](const std::string& name) {
      const auto at = varied.find(name);
      if (at == varied.end()) {
        return fixed.at(name);
      }
      const std::string& text =
          axes_[at->second.first].values[where[at->second.first]][at->second.second];
      const auto number = number_in(text);
      if (!number) {
        throw ConfigError(Problem{kCommandLine, "--where", name, "a flag whose values are numbers",
                                  fmt::format("one of them is `{}`", text)});
      }
      return *number;
    };
    const bool holds =
        std::all_of(conditions.begin(), conditions.end(),
                    [&](const Condition& condition) { return condition.holds(value_of); });
    if (!holds) {
      points_.pop_back();
    }
  }
  if (points_.empty()) {
    throw ConfigError(Problem{kCommandLine, "--where", fmt::format("{}", fmt::join(texts, ", ")),
                              "conditions that some of the points meet",
                              fmt::format("none of {} does", combinations)});
  }
}

std::vector<std::size_t> Grid::place(std::size_t point) const {
  std::vector<std::size_t> where(axes_.size());
  std::size_t rest = points_.at(point);
  for (std::size_t axis = axes_.size(); axis-- > 0;) {
    where[axis] = rest % axes_[axis].size();
    rest /= axes_[axis].size();
  }
  return where;
}

Settings Grid::at(std::size_t point) const {
  const std::vector<std::size_t> where = place(point);
  Settings settings;
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    for (std::size_t i = 0; i < axes_[axis].names.size(); ++i) {
      settings.emplace_back(axes_[axis].names[i], axes_[axis].values[where[axis]][i]);
    }
  }
  return settings;
}

// Axes that startups look at late vary fastest.
std::vector<std::size_t> Grid::order() const {
  std::vector<std::size_t> late;
  for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
    if (std::all_of(axes_[axis].names.begin(), axes_[axis].names.end(), [](const auto& name) {
          return vllm::is_budget_flag(name) || is_workload_knob(name);
        })) {
      late.push_back(axis);
    }
  }
  std::vector<std::pair<std::vector<std::size_t>, std::size_t>> keyed;
  keyed.reserve(size());
  for (std::size_t point = 0; point < size(); ++point) {
    std::vector<std::size_t> where = place(point);
    for (const std::size_t axis : late) {
      where[axis] = 0;
    }
    keyed.emplace_back(std::move(where), point);
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<std::size_t> order;
  order.reserve(size());
  for (const auto& [where, point] : keyed) {
    order.push_back(point);
  }
  return order;
}

}  // namespace oomcast::search
