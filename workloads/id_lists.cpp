#include "workloads/id_lists.hpp"

#include <algorithm>
#include <cstring>

namespace oomcast::workloads {
namespace {

const char* skip_spaces(const char* at, const char* end) {
  while (at < end && (*at == ' ' || *at == '\t')) {
    ++at;
  }
  return at;
}

// Bytes at the front that are alike.
std::size_t common_length(std::string_view left, std::string_view right) {
  constexpr std::size_t kStride = 256;
  const std::size_t limit = std::min(left.size(), right.size());
  std::size_t at = 0;
  while (at + kStride <= limit && std::memcmp(left.data() + at, right.data() + at, kStride) == 0) {
    at += kStride;
  }
  while (at < limit && left[at] == right[at]) {
    ++at;
  }
  return at;
}

}  // namespace

// Reads from behind the opening bracket to the closing one, which it returns; nullptr: no list of
// ids. `before` is the text of the list before.
const char* IdLists::read_list(const char* at, const char* end, std::string_view before) {
  const std::size_t begin = ids_.size();
  const std::size_t same = common_length(before, {at, static_cast<std::size_t>(end - at)});
  if (const std::size_t comma = before.substr(0, same).rfind(','); comma != before.npos) {
    const char* const behind = at + comma + 1;
    const auto [from, to] = lists_.back();
    const std::size_t count = comma == before.rfind(',')
                                  ? to - from - 1
                                  : static_cast<std::size_t>(std::count(at, behind, ','));
    ids_.resize(begin + count);
    std::copy_n(ids_.begin() + static_cast<std::ptrdiff_t>(from), count,
                ids_.begin() + static_cast<std::ptrdiff_t>(begin));
    at = behind;
  } else if (at = skip_spaces(at, end); at < end && *at == ']') {
    lists_.emplace_back(begin, begin);
    return at;
  }
  constexpr std::ptrdiff_t kMostDigits = 18;
  while (true) {
    at = skip_spaces(at, end);
    const char* const first = at;
    std::int64_t id = 0;
    while (at < end && *at >= '0' && *at <= '9' && at - first < kMostDigits) {
      id = id * 10 + (*at++ - '0');
    }
    if (at == first || (*first == '0' && at - first > 1)) {
      return nullptr;
    }
    ids_.push_back(id);
    at = skip_spaces(at, end);
    if (at == end || (*at != ',' && *at != ']')) {
      return nullptr;
    }
    if (*at == ']') {
      lists_.emplace_back(begin, ids_.size());
      return at;
    }
    ++at;
  }
}

bool IdLists::take_out(std::string_view line, std::string_view key) {
  rest_.clear();
  ids_.clear();
  lists_.clear();
  const std::string quoted = '"' + std::string(key) + '"';
  const char* const end = line.data() + line.size();
  std::string_view before;
  std::size_t copied = 0;
  for (std::size_t at = line.find(quoted); at != line.npos; at = line.find(quoted, at)) {
    const bool escaped = at > 0 && line[at - 1] == '\\';  // inside of a longer text
    at += quoted.size();
    const char* list = skip_spaces(line.data() + at, end);
    if (escaped || list == end || *list != ':') {
      continue;
    }
    list = skip_spaces(list + 1, end);
    if (list == end || *list != '[') {
      continue;
    }
    ++list;
    const char* const closed = read_list(list, end, before);
    if (closed == nullptr) {
      return false;
    }
    before = {list, static_cast<std::size_t>(closed - list)};
    rest_.append(line.data() + copied, list);
    copied = at = static_cast<std::size_t>(closed - line.data());
  }
  rest_.append(line, copied);
  // A key written with escapes would have been missed.
  return rest_.find("\\u") == rest_.npos;
}

}  // namespace oomcast::workloads
