// How far long work has come, on a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace oomcast::cli {

// Done so far, the rate, and the time left where the number is known; on standard error while that
// is a terminal, and gone at the end.
class Progress {
 public:
  // `what` is counted: "requests".
  Progress(std::string what, std::optional<std::int64_t> total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void operator()(std::int64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  std::string what_;
  std::optional<std::int64_t> total_;
  bool shown_;
  bool written_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace oomcast::cli
