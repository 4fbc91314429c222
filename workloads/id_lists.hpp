// Lists of block ids, as traces of long shared prompts are full of them: mostly ids that follow
// each other, and most of a list repeats the one before it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace oomcast::workloads {

// `count` ids, each the one before plus 1.
struct IdRun {
  std::int64_t first = 0;
  std::int64_t count = 0;

  friend bool operator==(const IdRun&, const IdRun&) = default;
};

// Lists of ids behind each other in one buffer of runs.
class IdLists {
 public:
  struct List {
    std::size_t begin = 0;  // its runs
    std::size_t end = 0;
    std::int64_t ids = 0;
  };

  void clear();
  // An empty list, which becomes the last one.
  void open();
  // Adds an id to the last list.
  void push(std::int64_t id);

  [[nodiscard]] std::size_t size() const { return lists_.size(); }
  [[nodiscard]] const List& operator[](std::size_t list) const { return lists_[list]; }
  [[nodiscard]] const IdRun& run(std::size_t run) const { return runs_[run]; }

  // Reads the elements of a list from behind its opening bracket to the closing one, which it
  // returns, as a list of its own. nullptr: anything but whole numbers of 0 or more, plainly
  // written; the list is then in an unknown state. `before` is the text of the list before, which
  // is repeated at no cost.
  const char* read(const char* at, const char* end, std::string_view before);

 private:
  void repeat_front(std::int64_t count);

  std::vector<IdRun> runs_;
  std::vector<List> lists_;
};

// Takes the elements of all lists that a member called `key` holds out of a JSON line. False for
// lists that IdLists does not read and for some lines that are no JSON: the line is to be read as
// it is. Else `rest` is the line with those lists left empty, and they are added in order of
// appearance.
bool take_out_lists(std::string_view line, std::string_view key, std::string& rest, IdLists& lists);

}  // namespace oomcast::workloads
