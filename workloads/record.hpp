// Rows of a trace as named fields, whether they stand in a CSV or as one JSON object a line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "workloads/byte_source.hpp"
#include "workloads/id_lists.hpp"

namespace oomcast::workloads {

class RecordSource {
 public:
  explicit RecordSource(std::unique_ptr<LineReader> lines) : lines_(std::move(lines)) {}
  virtual ~RecordSource() = default;
  RecordSource(const RecordSource&) = delete;
  RecordSource& operator=(const RecordSource&) = delete;

  // Asks for a field by its column or key; the number returned reads it from every row. Before the
  // first next().
  virtual int want(std::string_view name) = 0;

  // The same for a field that holds a list.
  virtual int want_list(std::string_view name) { return want(name); }

  // The next row; blank lines are skipped. Throws ConfigError for a line that is no row.
  virtual bool next() = 0;

  // The text of a field in this row: a cell, a JSON string, number or boolean as written. nullopt:
  // absent, empty or null. Lives until next().
  [[nodiscard]] virtual std::optional<std::string_view> field(int wanted) const = 0;

  // A JSON list of whole numbers, the only one of the lists; nullptr where the field is no such
  // list.
  [[nodiscard]] virtual const IdLists* list(int wanted) const = 0;

  [[nodiscard]] std::string place() const { return lines_->place(); }
  // Of the row's last line, and moving on to another one (after the first line).
  [[nodiscard]] std::int64_t line() const { return lines_->line_number(); }
  void skip_to(std::int64_t line) { lines_->skip_to(line); }
  // Lines that only repeat the header, as concatenated files have them; they are no rows.
  [[nodiscard]] std::int64_t repeated_headers() const { return repeated_headers_; }
  [[nodiscard]] const std::string& name() const { return lines_->name(); }

 protected:
  std::unique_ptr<LineReader> lines_;  // NOLINT(*-non-private-*): shared with the two kinds below
  std::int64_t repeated_headers_ = 0;  // NOLINT(*-non-private-*)
};

// What the first line says about a file.
struct TraceHead {
  bool is_json = false;            // one JSON object a line; otherwise CSV with a header
  std::vector<std::string> names;  // column names, or the keys of the first object
};

// Reads the first line that is not blank and gives it back. Throws ConfigError for an empty or
// binary file.
TraceHead peek_head(LineReader& lines);

// The keys of the JSON object in a line, in order. Throws ConfigError for a line that is none.
std::vector<std::string> keys_of_object(std::string_view line, const LineReader& lines);

// The next line that is not blank; false at the end.
bool next_filled(LineReader& lines, std::string_view& line);

std::unique_ptr<RecordSource> open_csv(std::unique_ptr<LineReader> lines);
std::unique_ptr<RecordSource> open_json_lines(std::unique_ptr<LineReader> lines);

// The text without blanks at its ends, as field() gives it.
std::string_view trimmed(std::string_view text);

// Exact value of a decimal text ("12.5", "1e-05") times 10^digits, rounded to the nearest; nullopt
// if it is no finite number or does not fit 64 bits.
std::optional<std::int64_t> scaled_decimal(std::string_view text, int digits);

}  // namespace oomcast::workloads
