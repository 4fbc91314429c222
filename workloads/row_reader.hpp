// Rows of one trace format as requests, in file order, and the account of what was read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "sim/core/error.hpp"
#include "workloads/id_lists.hpp"
#include "workloads/record.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::workloads {

struct Row {
  TraceRequest request;         // index and arrival are filled later
  std::int64_t arrival_ns = 0;  // on the trace's own clock
  bool has_arrival = false;

  friend bool operator==(const Row&, const Row&) = default;
};

class RowReader {
 public:
  RowReader() = default;
  virtual ~RowReader() = default;
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // The next row that is kept; false at the end. Throws ConfigError with the first bad rows.
  virtual bool next(Row& row) = 0;
  [[nodiscard]] virtual ReadSummary summary() const = 0;
};

// A reader that can start in the middle of its file.
class SeekableRowReader : public RowReader {
 public:
  // The arrival of the row just read, as the trace writes it.
  [[nodiscard]] virtual std::string arrival_text() const = 0;
  // The line of the row just read.
  [[nodiscard]] virtual std::int64_t line() const = 0;
  // Goes on behind that line.
  virtual void skip_to(std::int64_t line) = 0;
};

// Adds the counts of one account to another.
void add_summary(ReadSummary& sum, const ReadSummary& part);

// Keeps the account, collects bad rows, and checks numbers. One for each reader.
class RowChecker {
 public:
  RowChecker(const RecordSource& source, const TraceOptions& options, ReadSummary& summary)
      : source_(&source), options_(&options), summary_(&summary) {}

  // Reads a count of tokens. A value that is no whole number from 0 to kMaxTokens is a bad row and
  // reads as nullopt; so does an absent one, which is no bad row.
  std::optional<std::int64_t> tokens(int field, std::string_view name);
  // A whole number of any size that fits.
  std::optional<std::int64_t> integer(int field, std::string_view name);
  // A decimal number times 10^digits.
  std::optional<std::int64_t> scaled(int field, std::string_view name, int digits);

  // Input and output of a row by the rules all formats share; false: the row is dropped and
  // counted. A bad number counts as a bad row.
  bool lengths(TraceRequest& request, std::optional<std::int64_t> input,
               std::optional<std::int64_t> output);

  // Counts this row as dropped for `reason`.
  bool drop(const std::string& reason);
  void change(const std::string& reason);
  void complain(std::string_view name, std::string value, std::string expected,
                std::string hint = {});
  // True if the row under way was found bad. Throws once there are many.
  bool row_is_bad();
  // At the end of the file: throws if any row was bad.
  void finish() const { problems_.raise_if_any(); }

 private:
  void count(std::map<std::string, ReadSummary::Reason>& where, const std::string& reason);

  const RecordSource* source_;
  const TraceOptions* options_;
  ReadSummary* summary_;
  Problems problems_;
  std::size_t problems_before_row_ = 0;
};

// No model has a longer context; larger numbers are damage, not lengths.
inline constexpr std::int64_t kMaxTokens = 100'000'000;

// 64-bit content id of block `id` within a scope (a format, a session): equal inputs, equal ids.
std::uint64_t content_id(std::uint64_t scope, std::uint64_t id);
std::uint64_t text_key(std::string_view text);

// Appends the content of blocks whose ids follow each other; the blocks are of `block` tokens.
void append_blocks(std::vector<ContentSegment>& content, std::uint64_t scope, const IdRun& ids,
                   std::int64_t block);

// Content of a prompt given as block ids. `last_is_partial`: the ids cover the whole prompt and the
// last may stand for fewer tokens than a block (ceil(input / block) ids); otherwise only whole
// blocks have ids (floor(input / block)) and the rest is unique to `unique_id`. False when the
// number of ids fits neither.
bool content_of_blocks(const IdLists& lists, std::size_t list, std::int64_t input,
                       std::int64_t block, bool last_is_partial, std::uint64_t scope,
                       std::uint64_t unique_id, std::vector<ContentSegment>& content);

}  // namespace oomcast::workloads
