// Running the points of a search on several cores.
#pragma once

#include <csignal>
#include <cstddef>
#include <functional>
#include <vector>

#include "sim/search/point.hpp"

namespace oomcast::search {

using Done = std::function<void(std::size_t point, const PointResult& result)>;
using SettingsOf = std::function<Settings(std::size_t point)>;

// Runs `points` in order, in runs of neighbours handed out as workers get free; `done` is called by
// one thread at a time, in any order. What a point or `done` throws ends the search. A stop signal
// in `base` ends it with Interrupted.
void run_on_threads(const PointBase& base, const std::vector<std::size_t>& points,
                    const SettingsOf& settings_of, int threads, const Done& done);

// How many points are handed out at once: neighbours share work, and the last should not wait long.
std::size_t points_at_once(std::size_t points, int workers, bool replays);

}  // namespace oomcast::search
