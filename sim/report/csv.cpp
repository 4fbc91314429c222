#include "sim/report/csv.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "sim/core/units_text.hpp"

namespace oomcast {
namespace {

// What a number or an instant takes with the comma behind it, at most.
constexpr std::size_t kMostLetters = 24;

char* put_number(char* at, std::int64_t number) {
  at = std::to_chars(at, at + kMostLetters - 1, number).ptr;
  *at++ = ',';
  return at;
}

// "00", "01", ... "99"
constexpr auto kPairs = [] {
  std::array<std::array<char, 2>, 100> pairs{};
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    pairs[i] = {static_cast<char>('0' + i / 10), static_cast<char>('0' + i % 10)};
  }
  return pairs;
}();

// Seconds with nanosecond digits; nothing for an instant that never came.
char* put_time(char* at, SimTime time) {
  constexpr std::int64_t kPerSecond = 1'000'000'000;
  constexpr std::ptrdiff_t kDigits = 9;
  const std::int64_t nanos = time.since_start().count();
  if (nanos >= 0) {
    at = std::to_chars(at, at + kMostLetters, nanos / kPerSecond).ptr;
    *at++ = '.';
    auto rest = static_cast<std::uint32_t>(nanos % kPerSecond);
    for (std::ptrdiff_t i = kDigits - 2; i > 0; i -= 2) {
      std::copy(kPairs[rest % 100].begin(), kPairs[rest % 100].end(), at + i);
      rest /= 100;
    }
    *at = static_cast<char>('0' + rest);
    at += kDigits;
  }
  *at++ = ',';
  return at;
}

void add_number(std::string& line, std::int64_t number) {
  std::array<char, kMostLetters> text{};
  line.append(text.data(), put_number(text.data(), number));
}

// Ids come from the trace and may hold anything.
void add_text(std::string& line, std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    line.append(text);
  } else {
    line += '"';
    for (const char letter : text) {
      line += letter;
      if (letter == '"') {
        line += letter;
      }
    }
    line += '"';
  }
  line += ',';
}

// Columns that only some runs have; empty where a row has none of them.
struct ExtraColumns {
  bool segments = false;  // the allocator's depth
  bool transfer = false;  // prefill and decode servers
  bool host = false;      // with a host tier
};

void put_row(std::string& line, int rank, const TimelineRow& row, const ExtraColumns& extra) {
  constexpr std::size_t kMostNumbers = kLeafCount + 18;
  std::array<char, kMostNumbers * kMostLetters> text;
  char* at = put_time(text.data(), row.at);
  const auto put = [&at](std::int64_t number) { at = put_number(at, number); };
  const auto put_nothing = [&at] { *at++ = ','; };
  put(rank);
  for (const Bytes bytes : row.device) {
    put(bytes.count());
  }
  for (const Bytes bytes :
       {row.kv_used, row.kv_cached, row.kv_free, row.views.torch_allocated,
        row.views.torch_reserved, row.views.device_used, row.views.pinned_host}) {
    put(bytes.count());
  }
  for (const std::int64_t count : {row.running, row.waiting, row.step_tokens, row.preemptions}) {
    put(count);
  }
  if (row.torch) {
    put(row.torch->inactive_split.count());
    put(row.torch->segments);
  } else if (extra.segments) {
    put_nothing();
    put_nothing();
  }
  if (row.transfer) {
    put(row.transfer->kv_held.count());
    put(row.transfer->requests);
  } else if (extra.transfer) {
    put_nothing();
    put_nothing();
  }
  if (row.host_used) {
    put(row.host_used->count());
  } else if (extra.host) {
    put_nothing();
  }
  at[-1] = '\n';
  line.assign(text.data(), at);
}

}  // namespace

void write_timeline_csv(const std::vector<RankRecord>& ranks, CheckedFile& file) {
  std::string line = "time_s,rank,";
  for (const std::string_view name : kLeafNames) {
    line.append(name);
    line += ',';
  }
  file.append(line);
  file.append(
      "kv_used_bytes,kv_cached_bytes,kv_free_bytes,torch_allocated_bytes,torch_reserved_bytes,"
      "device_used_bytes,pinned_host_bytes,running,waiting,step_tokens,preemptions");
  ExtraColumns extra;
  for (const RankRecord& rank : ranks) {
    extra.segments = extra.segments || rank.allocator.has_value();
    extra.transfer = extra.transfer || !rank.role.empty();
    extra.host = extra.host || (!rank.timeline.empty() && rank.timeline.front().host_used);
  }
  file.append(extra.segments ? ",torch_inactive_split_bytes,torch_segments" : "");
  file.append(extra.transfer ? ",kv_held_bytes,in_transfer" : "");
  file.append(extra.host ? ",host_kv_bytes\n" : "\n");
  for (const RankRecord& rank : ranks) {
    for (const PhaseRecord& phase : rank.startup) {
      TimelineRow row;
      row.device = phase.device;
      row.views = phase.views;
      row.kv_free = phase.device[index_of(Leaf::kKvPool)];
      put_row(line, rank.rank, row, extra);
      file.append(line);
    }
    for (const TimelineRow& row : rank.timeline) {
      put_row(line, rank.rank, row, extra);
      file.append(line);
    }
  }
}

RequestsCsv::RequestsCsv(const std::string& path) : file_(path) {
  file_.append(
      "id,arrival_s,first_scheduled_s,first_token_s,finish_s,input_tokens,output_tokens,"
      "cached_tokens,preemptions,outcome\n");
}

void RequestsCsv::row(const RequestRow& row) {
  line_.clear();
  if (row.id.empty()) {
    add_number(line_, row.index);
  } else {
    add_text(line_, row.id);
  }
  constexpr std::size_t kNumbers = 8;
  std::array<char, kNumbers * kMostLetters> text;
  char* at = text.data();
  for (const SimTime time : {row.arrival, row.first_scheduled, row.first_token, row.finish}) {
    at = put_time(at, time);
  }
  for (const std::int64_t count :
       {row.input.count(), row.output.count(), row.cached.count(), row.preemptions}) {
    at = put_number(at, count);
  }
  line_.append(text.data(), at);
  line_.append(name_of(row.outcome));
  line_ += '\n';
  file_.append(line_);
}

}  // namespace oomcast
