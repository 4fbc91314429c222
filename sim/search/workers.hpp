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

// Who runs the points of a search.
class Workers {
 public:
  Workers() = default;
  virtual ~Workers() = default;
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  Workers(Workers&&) = delete;
  Workers& operator=(Workers&&) = delete;

  // This process sees the results; others only serve().
  [[nodiscard]] virtual bool leads() const = 0;
  // Runs `points`, in runs of neighbours handed out as workers get free; `done` is called by one
  // thread at a time, in any order. What a point or `done` throws ends the search. A stop signal in
  // `base` ends it with Interrupted.
  virtual void run(const PointBase& base, const std::vector<std::size_t>& points,
                   const SettingsOf& settings_of, const Done& done) = 0;
  // Runs points for the leader until there are no more.
  virtual void serve(const PointBase& base, const SettingsOf& settings_of) = 0;
};

// The cores of one machine.
class ThreadWorkers final : public Workers {
 public:
  explicit ThreadWorkers(int threads) : threads_(threads) {}

  [[nodiscard]] bool leads() const override { return true; }
  void run(const PointBase& base, const std::vector<std::size_t>& points,
           const SettingsOf& settings_of, const Done& done) override;
  void serve(const PointBase& /*base*/, const SettingsOf& /*settings_of*/) override {}

 private:
  int threads_;
};

// How many points are handed out at once: neighbours share work, and the last should not wait long.
std::size_t points_at_once(std::size_t points, int workers, bool replays);

}  // namespace oomcast::search
