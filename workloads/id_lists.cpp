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

void IdLists::clear() {
  runs_.clear();
  lists_.clear();
}

void IdLists::open() { lists_.push_back({runs_.size(), runs_.size(), 0}); }

void IdLists::push(std::int64_t id) {
  List& list = lists_.back();
  ++list.ids;
  if (list.end > list.begin) {
    IdRun& last = runs_.back();
    // Unsigned: no id follows the largest.
    if (static_cast<std::uint64_t>(last.first) + static_cast<std::uint64_t>(last.count) ==
            static_cast<std::uint64_t>(id) &&
        id > last.first) {
      ++last.count;
      return;
    }
  }
  runs_.push_back({id, 1});
  ++list.end;
}

// The first `count` ids of the list before into the last one, which is empty.
void IdLists::repeat_front(std::int64_t count) {
  List& list = lists_.back();
  list.ids = count;
  for (std::size_t i = lists_[lists_.size() - 2].begin; count > 0; ++i) {
    const IdRun run = runs_[i];
    runs_.push_back({run.first, std::min(run.count, count)});
    count -= runs_.back().count;
  }
  list.end = runs_.size();
}

const char* IdLists::read(const char* at, const char* end, std::string_view before) {
  open();
  const std::size_t same = common_length(before, {at, static_cast<std::size_t>(end - at)});
  if (const std::size_t comma = before.substr(0, same).rfind(','); comma != before.npos) {
    const char* const behind = at + comma + 1;
    repeat_front(comma == before.rfind(',') ? lists_[lists_.size() - 2].ids - 1
                                            : std::count(at, behind, ','));
    at = behind;
  } else if (at = skip_spaces(at, end); at < end && *at == ']') {
    return at;
  }
  constexpr std::ptrdiff_t kMostDigits = 18;
  while (true) {
    at = skip_spaces(at, end);
    const char* const first = at;
    const char* const stop = end - at < kMostDigits ? end : at + kMostDigits;
    std::int64_t id = 0;
    for (; at < stop; ++at) {
      const auto digit = static_cast<unsigned>(*at - '0');
      if (digit > 9) {
        break;
      }
      id = id * 10 + digit;
    }
    if (at == first || (*first == '0' && at - first > 1)) {
      return nullptr;
    }
    push(id);
    at = skip_spaces(at, end);
    if (at == end || (*at != ',' && *at != ']')) {
      return nullptr;
    }
    if (*at == ']') {
      return at;
    }
    ++at;
  }
}

bool take_out_lists(std::string_view line, std::string_view key, std::string& rest,
                    IdLists& lists) {
  rest.clear();
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
    const char* const closed = lists.read(list, end, before);
    if (closed == nullptr) {
      return false;
    }
    before = {list, static_cast<std::size_t>(closed - list)};
    rest.append(line.data() + copied, list);
    copied = at = static_cast<std::size_t>(closed - line.data());
  }
  rest.append(line, copied);
  // A key written with escapes would have been missed.
  return rest.find("\\u") == rest.npos;
}

}  // namespace oomcast::workloads
