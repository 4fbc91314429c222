// What a sweep has found so far, on disk: a killed sweep goes on where it stopped.
//
// DIR.partial/journal holds one line a point, its number, its result and a checksum, appended whole
// and in any order. A line that was cut or damaged is done again. Another sweep's journal is
// refused, and two processes never write one journal.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "sim/search/point.hpp"

namespace oomcast::search {

class Journal {
 public:
  // `key` stands for everything that decides the results, `points` for how many there are. Throws
  // ConfigError when the folder cannot be written, is in use, or belongs to another sweep.
  Journal(const std::string& out, std::uint64_t key, std::size_t points);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Results that were there.
  [[nodiscard]] const std::map<std::size_t, PointResult>& found() const { return found_; }
  // Durable once it returns, but for the last second's. Throws ConfigError on a full disk.
  void append(std::size_t point, const PointResult& result);
  // The results lie elsewhere now.
  void remove();

 private:
  void read(std::uint64_t key, std::size_t points);
  void write(const std::string& line);

  std::string folder_;
  std::string path_;
  int descriptor_ = -1;
  std::int64_t synced_at_ = 0;  // steady seconds
  std::map<std::size_t, PointResult> found_;
};

}  // namespace oomcast::search
