// What wraps a line of an engine's log on its way into a file: colours, containers, schedulers,
// and the process that printed it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace oomcast::logs {

// One line as the engine wrote it.
struct LogLine {
  std::string text;
  std::string stream;  // container, pod or unit; empty if the line names none
  std::string rank;    // "TP0", "DP1 TP0", "rank 3"; empty for lines of no particular worker
};

class LineUnwrapper {
 public:
  // A raw line may hold several: progress bars end in carriage returns, JSON records carry line
  // feeds. What no text holds is replaced by blanks and counted. The result lives until the next
  // call.
  const std::vector<LogLine>& unwrap(std::string_view raw);

  [[nodiscard]] std::int64_t unreadable_bytes() const { return unreadable_; }

 private:
  void add(std::string_view text, const std::string& stream);

  std::vector<LogLine> lines_;
  std::int64_t unreadable_ = 0;
};

}  // namespace oomcast::logs
