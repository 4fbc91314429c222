#include "workloads/record.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast::workloads {
namespace {

// Cells of one CSV row (RFC 4180). Unquoted rows are cut in place; a quoted cell is copied.
class CsvCells {
 public:
  explicit CsvCells(char separator) : separator_(separator) {}

  // False: a quote is still open, the row goes on in the next line.
  bool split(std::string_view line);

  [[nodiscard]] const std::vector<std::string_view>& cells() const { return cells_; }

 private:
  bool split_quoted(std::string_view line);

  char separator_;
  std::vector<std::string_view> cells_;
  std::string unquoted_;
};

bool CsvCells::split(std::string_view line) {
  cells_.clear();
  if (std::memchr(line.data(), '"', line.size()) != nullptr) {
    return split_quoted(line);
  }
  const char* at = line.data();
  const char* const last = at + line.size();
  while (true) {
    const void* found = std::memchr(at, separator_, static_cast<std::size_t>(last - at));
    const char* stop = found == nullptr ? last : static_cast<const char*>(found);
    cells_.emplace_back(at, static_cast<std::size_t>(stop - at));
    if (found == nullptr) {
      return true;
    }
    at = stop + 1;
  }
}

bool CsvCells::split_quoted(std::string_view line) {
  unquoted_.clear();
  // The text only shrinks, so the views below stay valid.
  unquoted_.reserve(line.size());
  std::size_t start = 0;
  bool open = false;
  const auto close_cell = [&] {
    cells_.emplace_back(unquoted_.data() + start, unquoted_.size() - start);
    start = unquoted_.size();
  };
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char letter = line[i];
    if (letter == '"') {
      if (open && i + 1 < line.size() && line[i + 1] == '"') {
        unquoted_ += '"';
        ++i;
      } else {
        open = !open;
      }
    } else if (letter == separator_ && !open) {
      close_cell();
    } else {
      unquoted_ += letter;
    }
  }
  close_cell();
  return !open;
}

char separator_of(std::string_view header) {
  char best = ',';
  std::ptrdiff_t most = 0;
  for (const char candidate : {',', '\t', ';'}) {
    const auto count = std::count(header.begin(), header.end(), candidate);
    if (count > most) {
      most = count;
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> header_names(std::string_view line) {
  CsvCells cells(separator_of(line));
  cells.split(line);
  std::vector<std::string> names;
  for (const std::string_view cell : cells.cells()) {
    names.emplace_back(trimmed(cell));
  }
  return names;
}

class CsvRecords : public RecordSource {
 public:
  explicit CsvRecords(std::unique_ptr<LineReader> reader)
      : RecordSource(std::move(reader)), cells_(',') {
    std::string_view line;
    if (next_filled(*lines_, line)) {
      cells_ = CsvCells(separator_of(line));
      names_ = header_names(line);
      header_ = line;
    }
  }

  int want(std::string_view name) override {
    const auto found = std::find(names_.begin(), names_.end(), name);
    return found == names_.end() ? -1 : static_cast<int>(found - names_.begin());
  }

  bool next() override {
    std::string_view line;
    do {
      if (!next_filled(*lines_, line)) {
        return false;
      }
    } while (repeats_header(line));
    if (!cells_.split(line)) {
      join_open_quotes(line);
    }
    if (cells_.cells().size() != names_.size()) {
      throw ConfigError(Problem{name(), place(), fmt::format("{} cells", cells_.cells().size()),
                                fmt::format("{} cells, as in the header", names_.size()), ""});
    }
    return true;
  }

  [[nodiscard]] std::optional<std::string_view> field(int wanted) const override {
    if (wanted < 0) {
      return std::nullopt;
    }
    const std::string_view cell = trimmed(cells_.cells()[static_cast<std::size_t>(wanted)]);
    return cell.empty() ? std::nullopt : std::optional(cell);
  }

  [[nodiscard]] const IdLists* list(int /*wanted*/) const override { return nullptr; }

 private:
  bool repeats_header(std::string_view line) {
    const bool repeats = line == header_;
    repeated_headers_ += repeats ? 1 : 0;
    return repeats;
  }

  void join_open_quotes(std::string_view line) {
    joined_ = line;
    bool closed = false;
    while (!closed) {
      if (!lines_->next(line) || joined_.size() + line.size() > kMaxLineBytes) {
        throw ConfigError(Problem{name(), place(), joined_, "a closing quote", ""});
      }
      joined_ += '\n';
      joined_ += line;
      // Only a line that holds a quote can close one.
      closed = line.find('"') != std::string_view::npos && cells_.split(joined_);
    }
  }

  std::string header_;
  std::vector<std::string> names_;
  CsvCells cells_;
  std::string joined_;
};

}  // namespace

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
    text.remove_suffix(1);
  }
  return text;
}

bool next_filled(LineReader& lines, std::string_view& line) {
  while (lines.next(line)) {
    if (!trimmed(line).empty()) {
      return true;
    }
  }
  return false;
}

TraceHead peek_head(LineReader& lines) {
  std::string_view line;
  if (!next_filled(lines, line)) {
    throw ConfigError(Problem{lines.name(), "", "nothing", "a trace with at least one row", ""});
  }
  const auto is_control = [](char letter) {
    return static_cast<unsigned char>(letter) < 0x20 && letter != '\t';
  };
  if (std::any_of(line.begin(), line.end(), is_control)) {
    throw ConfigError(Problem{lines.name(), lines.place(), std::string(line.substr(0, 40)),
                              "a text file: CSV with a header, or JSON lines", ""});
  }
  TraceHead head;
  head.is_json = trimmed(line).starts_with('{') || trimmed(line).starts_with('[');
  if (head.is_json) {
    head.names = keys_of_object(line, lines);
  } else {
    head.names = header_names(line);
  }
  lines.unread();
  return head;
}

std::unique_ptr<RecordSource> open_csv(std::unique_ptr<LineReader> lines) {
  return std::make_unique<CsvRecords>(std::move(lines));
}

std::optional<std::int64_t> scaled_decimal(std::string_view text, int digits) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) {
    text.remove_prefix(1);
  }
  constexpr std::uint64_t kRoom = (UINT64_MAX - 9) / 10;
  std::uint64_t mantissa = 0;
  int exponent = digits;
  bool any_digit = false;
  bool after_point = false;
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    const char letter = text[at];
    if (letter == '.' && !after_point) {
      after_point = true;
    } else if (letter >= '0' && letter <= '9') {
      any_digit = true;
      if (mantissa <= kRoom) {
        mantissa = mantissa * 10 + static_cast<std::uint64_t>(letter - '0');
        exponent -= after_point ? 1 : 0;
      } else {
        exponent += after_point ? 0 : 1;
      }
    } else {
      break;
    }
  }
  if (!any_digit) {
    return std::nullopt;
  }
  if (at < text.size()) {
    if (text[at] != 'e' && text[at] != 'E') {
      return std::nullopt;
    }
    std::string_view rest = text.substr(at + 1);
    if (rest.starts_with('+')) {
      rest.remove_prefix(1);
    }
    int written = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), written);
    constexpr int kLargestExponent = 400;
    if (error != std::errc{} || end != rest.data() + rest.size() || rest.empty() ||
        written > kLargestExponent || written < -kLargestExponent) {
      return std::nullopt;
    }
    exponent += written;
  }
  for (; exponent > 0 && mantissa != 0; --exponent) {
    if (mantissa > UINT64_MAX / 10) {
      return std::nullopt;
    }
    mantissa *= 10;
  }
  std::uint64_t remainder_digit = 0;
  for (; exponent < 0 && (mantissa != 0 || remainder_digit != 0); ++exponent) {
    remainder_digit = mantissa % 10;
    mantissa /= 10;
  }
  mantissa += remainder_digit >= 5 ? 1 : 0;
  if (mantissa > static_cast<std::uint64_t>(INT64_MAX)) {
    return std::nullopt;
  }
  const auto value = static_cast<std::int64_t>(mantissa);
  return negative ? -value : value;
}

}  // namespace oomcast::workloads
