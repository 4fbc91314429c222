// Formats whose every row is one request: a description of the columns is all they need.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "workloads/row_reader.hpp"

namespace oomcast::workloads {

// How a time column is written. The format fixes the unit, never the magnitude of the values.
enum class TimeUnit { kSeconds, kMillis, kMicros, kNanos, kDateTime };

// Columns by name; an empty name: the format has no such column.
struct FlatFormat {
  std::string name;
  std::string about;
  // Columns a file must have to be taken for this format, and must not have.
  std::vector<std::string> required;
  std::vector<std::string> forbidden;
  bool is_json = false;

  std::string arrival;  // may be absent from a file: all requests then arrive at once
  TimeUnit arrival_unit = TimeUnit::kSeconds;
  std::string input;
  std::string output;
  std::string id;
  std::string session;
  std::string parent;
  std::string turn;
  bool turn_counts_messages = false;  // 1, 3, 5, ... for turns 1, 2, 3
  std::string think;
  TimeUnit think_unit = TimeUnit::kSeconds;
  std::string patience;  // seconds until the client gives up
  std::string priority;
  std::string adapter;
  std::string success;  // rows where it is not true are dropped

  std::string blocks;  // list of block ids
  std::int64_t block_size = 0;
  bool last_block_is_partial = true;
  // A prompt holds the whole conversation so far: equal offsets, equal tokens.
  bool session_is_content = false;
};

std::unique_ptr<SeekableRowReader> open_flat(std::unique_ptr<LineReader> lines,
                                             const FlatFormat& format, const TraceOptions& options);

// "2023-11-16 18:15:46.6805900", "2024-05-10T00:00:00.009Z", "...+02:00": nanoseconds since 1970,
// UTC where no zone is named; nullopt if it is none of these.
std::optional<std::int64_t> parse_date_time(std::string_view text);

}  // namespace oomcast::workloads
