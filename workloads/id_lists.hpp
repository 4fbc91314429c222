// Lists of block ids taken out of a JSON line before it is parsed. In a trace of long shared
// prompts they are nearly all of its text, and most of a list repeats the one before it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oomcast::workloads {

class IdLists {
 public:
  // Takes out the elements of all lists that a member called `key` holds. False for lists of
  // anything but whole numbers of 0 or more, plainly written, and for some lines that are no JSON:
  // the line is to be read as it is.
  bool take_out(std::string_view line, std::string_view key);

  // The line with those lists left empty.
  [[nodiscard]] const std::string& rest() const { return rest_; }
  // [begin, end) in ids() of each list, in order of appearance.
  [[nodiscard]] const std::vector<std::pair<std::size_t, std::size_t>>& lists() const {
    return lists_;
  }
  std::vector<std::int64_t>& ids() { return ids_; }

 private:
  const char* read_list(const char* at, const char* end, std::string_view before);

  std::string rest_;
  std::vector<std::int64_t> ids_;
  std::vector<std::pair<std::size_t, std::size_t>> lists_;
};

}  // namespace oomcast::workloads
