#include "sim/cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "sim/core/units_text.hpp"

namespace oomcast::cli {

Progress::Progress(std::string what, std::optional<std::int64_t> total)
    : what_(std::move(what)),
      total_(total),
      shown_(::isatty(STDERR_FILENO) != 0),
      start_(Clock::now()) {}

Progress::~Progress() {
  if (written_) {
    std::cerr << "\r\033[K";
  }
}

void Progress::operator()(std::int64_t done) {
  const auto now = Clock::now();
  if (!shown_ || now - last_ < std::chrono::milliseconds(200)) {
    return;
  }
  last_ = now;
  written_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done) / std::max(seconds, 1e-9);
  std::string line = fmt::format("\r\033[K{} {}, {:.0f}/s", format_count(done), what_, rate);
  if (total_ && rate > 0) {
    line += fmt::format(", {:.0f} s left", static_cast<double>(*total_ - done) / rate);
  }
  std::cerr << line << std::flush;
}

}  // namespace oomcast::cli
