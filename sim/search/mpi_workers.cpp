#include "sim/search/mpi_workers.hpp"

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

namespace oomcast::search {
namespace {

constexpr int kAsks = 1;   // a worker: results of the last run of points, as JSON; then wants more
constexpr int kHands = 2;  // the leader: numbers of points; none: no more will come
constexpr auto kPause = std::chrono::microseconds(200);

// What is still to do, for the leader's own thread and for the others.
class Queue {
 public:
  Queue(const std::vector<std::size_t>& points, std::size_t at_once)
      : points_(points), at_once_(at_once) {}

  std::vector<std::uint64_t> take() {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> out;
    while (next_ < points_.size() && out.size() < at_once_) {
      out.push_back(points_[next_++]);
    }
    return out;
  }
  void close() {
    const std::lock_guard lock(mutex_);
    next_ = points_.size();
  }

 private:
  std::mutex mutex_;
  const std::vector<std::size_t>& points_;
  std::size_t at_once_;
  std::size_t next_ = 0;
};

std::string run_points(PointRunner& runner, const std::vector<std::uint64_t>& points,
                       const SettingsOf& settings_of) {
  Json results = Json::array();
  for (const std::uint64_t point : points) {
    results.push_back({point, to_json(runner.run(settings_of(point)))});
  }
  return results.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void take_results(const std::string& text, const Done& done) {
  for (const Json& entry : parse_json(text, "a worker's results")) {
    done(entry.at(0).get<std::size_t>(), point_from_json(entry.at(1), "a worker's results"));
  }
}

std::string receive_text(MPI_Status& status, int from) {
  MPI_Probe(from, kAsks, MPI_COMM_WORLD, &status);
  int length = 0;
  MPI_Get_count(&status, MPI_CHAR, &length);
  std::string text(static_cast<std::size_t>(length), '\0');
  MPI_Recv(text.data(), length, MPI_CHAR, status.MPI_SOURCE, kAsks, MPI_COMM_WORLD, &status);
  return text;
}

}  // namespace

MpiWorkers::MpiWorkers() {
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

void MpiWorkers::run(const PointBase& base, const std::vector<std::size_t>& points,
                     const SettingsOf& settings_of, const Done& done) {
  has_run_ = true;
  Queue queue(points, points_at_once(points.size(), size_, base.replays()));
  std::mutex mutex;             // of `own` and `failure`
  std::deque<std::string> own;  // results of this process, for the thread that may call `done`
  std::atomic<bool> own_done{false};
  std::exception_ptr failure;
  std::jthread worker([&] {
    try {
      PointRunner runner(base);
      for (auto numbers = queue.take(); !numbers.empty(); numbers = queue.take()) {
        std::string results = run_points(runner, numbers, settings_of);
        const std::lock_guard lock(mutex);
        own.push_back(std::move(results));
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = failure ? failure : std::current_exception();
      queue.close();
    }
    own_done = true;
  });
  // After a failure everybody is still told that there is no more.
  const auto guarded = [&](const auto& step) {
    try {
      step();
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = failure ? failure : std::current_exception();
      queue.close();
    }
  };
  const auto take = [&](const std::string& results) {
    guarded([&] {
      if (!failure) {
        take_results(results, done);
      }
    });
  };
  int serving = size_ - 1;
  bool own_left = true;
  while (serving > 0 || own_left) {
    int waiting = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kAsks, MPI_COMM_WORLD, &waiting, &status);
    if (waiting != 0) {
      const std::string text = receive_text(status, status.MPI_SOURCE);
      const std::vector<std::uint64_t> numbers = queue.take();
      MPI_Send(numbers.data(), static_cast<int>(numbers.size()), MPI_UINT64_T, status.MPI_SOURCE,
               kHands, MPI_COMM_WORLD);
      serving -= numbers.empty() ? 1 : 0;
      take(text);
      continue;
    }
    std::string results;
    {
      const std::lock_guard lock(mutex);
      own_left = !own_done || !own.empty();
      if (!own.empty()) {
        results = std::move(own.front());
        own.pop_front();
      }
    }
    if (!results.empty()) {
      take(results);
    } else {
      std::this_thread::sleep_for(kPause);
    }
    guarded([&] {
      if (base.stop != nullptr && *base.stop != 0) {
        throw Interrupted();
      }
    });
  }
  worker.join();
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void MpiWorkers::serve(const PointBase& base, const SettingsOf& settings_of) {
  PointRunner runner(base);
  std::string results = "[]";
  for (;;) {
    MPI_Send(results.data(), static_cast<int>(results.size()), MPI_CHAR, 0, kAsks, MPI_COMM_WORLD);
    MPI_Status status;
    MPI_Probe(0, kHands, MPI_COMM_WORLD, &status);
    int count = 0;
    MPI_Get_count(&status, MPI_UINT64_T, &count);
    std::vector<std::uint64_t> numbers(static_cast<std::size_t>(count));
    MPI_Recv(numbers.data(), count, MPI_UINT64_T, 0, kHands, MPI_COMM_WORLD, &status);
    if (numbers.empty()) {
      return;
    }
    results = run_points(runner, numbers, settings_of);
  }
}

}  // namespace oomcast::search
