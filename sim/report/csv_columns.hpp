// Columns of a CSV of ours by name, read as checked numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "workloads/record.hpp"

namespace oomcast::report {

class CsvColumns {
 public:
  // Throws ConfigError naming every column of `names` that the file lacks. Others are passed over.
  CsvColumns(std::unique_ptr<workloads::LineReader> lines, std::vector<std::string_view> names);

  // Throws ConfigError for a line that is no row.
  bool next() { return rows_->next(); }

  // Numbers of this row by the position of the name; throw ConfigError (file, line, column). A
  // count or a number of bytes is whole and from 0 to 2^52.
  [[nodiscard]] std::int64_t count(std::size_t column) const;
  // Nanoseconds of an instant in seconds; nullopt where the cell is empty.
  [[nodiscard]] std::optional<std::int64_t> instant(std::size_t column) const;
  [[nodiscard]] std::string_view text(std::size_t column) const;

  [[noreturn]] void refuse(std::size_t column, std::string_view value, std::string expected) const;
  [[noreturn]] void refuse_row(std::string value, std::string expected) const;

 private:
  std::vector<std::string_view> names_;
  std::unique_ptr<workloads::RecordSource> rows_;
  std::vector<int> fields_;
};

}  // namespace oomcast::report
