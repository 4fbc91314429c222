#include "sim/logs/matcher.hpp"

#include <re2/re2.h>
#include <re2/set.h>

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast::logs {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kMarks = {
    {{"{n}", R"((-?\d[\d,]*(?:\.\d+)?))"},
     {"{d}", R"((-?\d*\.\d+))"},
     {"{size}", R"((\d[\d,]*(?:\.\d+)? ?(?:bytes|[KMGT]i?B)))"}}};

std::string expanded(std::string_view pattern) {
  std::string out(pattern);
  for (const auto& [mark, meaning] : kMarks) {
    for (std::size_t at = out.find(mark); at != std::string::npos;
         at = out.find(mark, at + meaning.size())) {
      out.replace(at, mark.size(), meaning);
    }
  }
  return out;
}

// Logs are bytes, not always text.
re2::RE2::Options options() {
  re2::RE2::Options made(re2::RE2::Latin1);
  // All patterns at once are one automaton; with less it is rebuilt over and over.
  constexpr std::int64_t kMemory = std::int64_t{64} << 20;
  made.set_max_mem(kMemory);
  made.set_log_errors(false);
  return made;
}

}  // namespace

struct Matcher::Compiled {
  struct Entry {
    Entry(const Table& in, const Row& one, const std::string& text)
        : table(&in), row(&one), pattern(text, options()) {}
    const Table* table;
    const Row* row;
    re2::RE2 pattern;
  };
  std::deque<Entry> entries;
  re2::RE2::Set set{options(), re2::RE2::UNANCHORED};
};

Matcher::Matcher(std::span<const Table> tables) : compiled_(std::make_unique<Compiled>()) {
  for (const Table& table : tables) {
    for (const Row& row : table.rows) {
      const std::string pattern = expanded(row.pattern);
      const Compiled::Entry& entry = compiled_->entries.emplace_back(table, row, pattern);
      OOMCAST_CHECK(
          entry.pattern.ok() &&
              std::cmp_greater_equal(entry.pattern.NumberOfCapturingGroups(), row.capture_count),
          "pattern `{}`: {}", pattern, entry.pattern.error());
      compiled_->set.Add(pattern, nullptr);
    }
  }
  OOMCAST_CHECK(compiled_->set.Compile(), "the patterns together take too much memory");
}

Matcher::~Matcher() = default;

void Matcher::match(std::string_view line, std::vector<Match>& found) const {
  found.clear();
  const re2::StringPiece text(line.data(), line.size());
  std::vector<int> ids;
  if (!compiled_->set.Match(text, &ids)) {
    return;
  }
  std::sort(ids.begin(), ids.end());
  for (const int id : ids) {
    const Compiled::Entry& entry = compiled_->entries[static_cast<std::size_t>(id)];
    std::array<re2::StringPiece, kMostCaptures + 1> groups;
    if (!entry.pattern.Match(text, 0, text.size(), re2::RE2::UNANCHORED, groups.data(),
                             static_cast<int>(entry.row->capture_count) + 1)) {
      continue;
    }
    Match& match = found.emplace_back();
    match.table = entry.table;
    match.row = entry.row;
    for (std::size_t i = 0; i < entry.row->capture_count; ++i) {
      match.groups[i] = {groups[i + 1].data(), groups[i + 1].size()};
    }
  }
}

}  // namespace oomcast::logs
