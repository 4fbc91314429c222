#include "workloads/record.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>

#include "sim/core/json.hpp"

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

bool next_filled(LineReader& lines, std::string_view& line) {
  while (lines.next(line)) {
    if (!trimmed(line).empty()) {
      return true;
    }
  }
  return false;
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

// Collects the fields of one flat object; nested values are skipped.
class FieldCollector : public nlohmann::json_sax<Json> {
 public:
  struct Slot {
    std::string name;
    bool present = false;
    bool is_list = false;
    std::string text;
    IdLists list;
  };

  std::vector<Slot> slots;
  std::vector<std::string>* keys = nullptr;  // collects all keys of the object, if set
  std::string problem;

  void reset() {
    for (Slot& slot : slots) {
      slot.present = false;
      slot.is_list = false;
    }
    depth_ = 0;
    current_ = nullptr;
    problem.clear();
  }

  bool null() override { return scalar({}, false); }
  bool boolean(bool value) override { return scalar(value ? "true" : "false", true); }
  bool number_integer(number_integer_t value) override { return integer(value); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<number_unsigned_t>(INT64_MAX)) {
      return integer(static_cast<std::int64_t>(value));
    }
    return scalar(fmt::format("{}", value), true);
  }
  bool number_float(number_float_t /*value*/, const string_t& written) override {
    return scalar(written, true);
  }
  bool string(string_t& value) override { return scalar(value, true); }
  bool binary(binary_t& /*value*/) override { return false; }

  bool start_object(std::size_t /*elements*/) override {
    ++depth_;
    if (depth_ > 1) {
      drop_list();
    }
    return check_depth();
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    if (depth_ == 0) {
      problem = "a JSON object, not a list";
      return false;
    }
    ++depth_;
    if (depth_ == 2 && current_ != nullptr) {
      current_->present = true;
      current_->is_list = true;
      current_->list.clear();
      current_->list.open();
    } else {
      drop_list();
    }
    return check_depth();
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ != 1) {
      return true;
    }
    if (keys != nullptr) {
      keys->push_back(name);
    }
    current_ = nullptr;
    for (Slot& slot : slots) {
      if (slot.name == name) {
        current_ = &slot;
      }
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    problem = fmt::format("valid JSON (column {})", position);
    return false;
  }

 private:
  bool check_depth() {
    if (depth_ > kMaxJsonDepth) {
      problem = fmt::format("JSON nested at most {} levels", kMaxJsonDepth);
      return false;
    }
    return true;
  }

  void drop_list() {
    if (current_ != nullptr) {
      current_->is_list = false;
      current_->present = false;
      current_ = nullptr;
    }
  }

  bool integer(std::int64_t value) {
    if (depth_ == 2 && current_ != nullptr && current_->is_list) {
      current_->list.push(value);
      return true;
    }
    std::array<char, 24> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    return scalar(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())),
                  true);
  }

  bool scalar(std::string_view text, bool present) {
    if (depth_ == 0) {
      problem = "a JSON object";
      return false;
    }
    if (depth_ > 1) {
      drop_list();
    } else if (current_ != nullptr) {
      current_->present = present;
      current_->text = text;
    }
    return true;
  }

  int depth_ = 0;
  Slot* current_ = nullptr;
};

void parse_object(std::string_view line, FieldCollector& collector, const LineReader& lines) {
  collector.reset();
  if (!Json::sax_parse(line.begin(), line.end(), &collector)) {
    throw ConfigError(Problem{lines.name(), lines.place(), std::string(line.substr(0, 200)),
                              collector.problem.empty() ? "a JSON object" : collector.problem,
                              "one JSON object a line"});
  }
}

class JsonRecords : public RecordSource {
 public:
  explicit JsonRecords(std::unique_ptr<LineReader> reader) : RecordSource(std::move(reader)) {}

  int want(std::string_view name) override {
    collector_.slots.push_back({std::string(name), false, false, {}, {}});
    return static_cast<int>(collector_.slots.size()) - 1;
  }

  int want_list(std::string_view name) override {
    list_ = want(name);
    return list_;
  }

  bool next() override {
    std::string_view line;
    if (!next_filled(*lines_, line)) {
      return false;
    }
    if (list_ < 0 || !parse_without_list(line)) {
      parse_object(line, collector_, *lines_);
    }
    return true;
  }

  [[nodiscard]] std::optional<std::string_view> field(int wanted) const override {
    const auto& slot = collector_.slots[static_cast<std::size_t>(wanted)];
    const bool there = slot.present && !slot.is_list && !slot.text.empty();
    return there ? std::optional<std::string_view>(slot.text) : std::nullopt;
  }

  [[nodiscard]] const IdLists* list(int wanted) const override {
    const auto& slot = collector_.slots[static_cast<std::size_t>(wanted)];
    return slot.present && slot.is_list ? &slot.list : nullptr;
  }

 private:
  // Where one list was taken out, it is the field's unless that one has elements still.
  bool parse_without_list(std::string_view line) {
    auto& slot = collector_.slots[static_cast<std::size_t>(list_)];
    lists_.clear();
    if (!take_out_lists(line, slot.name, rest_, lists_) || lists_.size() != 1) {
      return false;
    }
    collector_.reset();
    if (!Json::sax_parse(rest_, &collector_)) {
      return false;
    }
    if (slot.is_list && slot.list[0].ids == 0) {
      std::swap(slot.list, lists_);
    }
    return true;
  }

  FieldCollector collector_;
  int list_ = -1;
  std::string rest_;
  IdLists lists_;
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
    FieldCollector collector;
    collector.keys = &head.names;
    parse_object(line, collector, lines);
  } else {
    head.names = header_names(line);
  }
  lines.unread();
  return head;
}

std::unique_ptr<RecordSource> open_csv(std::unique_ptr<LineReader> lines) {
  return std::make_unique<CsvRecords>(std::move(lines));
}

std::unique_ptr<RecordSource> open_json_lines(std::unique_ptr<LineReader> lines) {
  return std::make_unique<JsonRecords>(std::move(lines));
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
