#include "sim/search/workers.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

namespace oomcast::search {

std::size_t points_at_once(std::size_t points, int workers, bool replays) {
  constexpr std::size_t kMost = 256;
  const std::size_t shares = static_cast<std::size_t>(workers) * 16;
  return replays ? 1 : std::clamp<std::size_t>(points / shares, 1, kMost);
}

void ThreadWorkers::run(const PointBase& base, const std::vector<std::size_t>& points,
                        const SettingsOf& settings_of, const Done& done) {
  const std::size_t at_once = points_at_once(points.size(), threads_, base.replays());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // of `done` and `failure`
  std::exception_ptr failure;
  std::atomic<bool> over{false};
  const auto work = [&] {
    try {
      PointRunner runner(base);
      while (!over) {
        const std::size_t begin = next.fetch_add(at_once);
        const std::size_t end = std::min(points.size(), begin + at_once);
        for (std::size_t i = begin; i < end && !over; ++i) {
          if (base.stop != nullptr && *base.stop != 0) {
            throw Interrupted();
          }
          const PointResult result = runner.run(settings_of(points[i]));
          const std::lock_guard lock(mutex);
          done(points[i], result);
        }
        if (begin >= points.size()) {
          return;
        }
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = failure ? failure : std::current_exception();
      over = true;
    }
  };
  {
    std::vector<std::jthread> workers;
    for (int i = 1; i < threads_; ++i) {
      workers.emplace_back(work);
    }
    work();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace oomcast::search
