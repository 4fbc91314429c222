#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "sim/core/json.hpp"
#include "workloads/record.hpp"

namespace oomcast::workloads {
namespace {

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
    enter(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    problem = fmt::format("valid JSON (column {})", position);
    return false;
  }

  // The member of the outer object that comes next, and its value where that is no list.
  void enter(std::string_view name) {
    current_ = nullptr;
    for (Slot& slot : slots) {
      if (slot.name == name) {
        current_ = &slot;
      }
    }
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

// An object of plain texts, numbers as programs write them and empty lists, as most rows are, read
// at once.
class PlainObject {
 public:
  explicit PlainObject(std::string_view line) : at_(line.data()), end_(at_ + line.size()) {}

  // Tells the collector what the parser would. False for anything else, JSON or not: the parser is
  // to read the line, the collector is in an unknown state.
  bool read(FieldCollector& collector) {
    collector.start_object(0);
    if (!skip('{')) {
      return false;
    }
    if (!skip('}')) {
      do {
        const auto name = text();
        if (!name || !skip(':')) {
          return false;
        }
        collector.enter(*name);
        if (!value(collector)) {
          return false;
        }
      } while (skip(','));
      if (!skip('}')) {
        return false;
      }
    }
    next();
    return at_ == end_;
  }

 private:
  // The next letter that is no blank; 0 at the end.
  char next() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t')) {
      ++at_;
    }
    return at_ < end_ ? *at_ : '\0';
  }
  bool skip(char letter) {
    const bool there = next() == letter;
    at_ += there ? 1 : 0;
    return there;
  }
  // Letters that stand for themselves.
  std::optional<std::string_view> text() {
    if (!skip('"')) {
      return std::nullopt;
    }
    const char* const first = at_;
    while (at_ < end_ && *at_ >= ' ' && *at_ <= '~' && *at_ != '"' && *at_ != '\\') {
      ++at_;
    }
    const std::string_view found(first, static_cast<std::size_t>(at_ - first));
    return at_ < end_ && *at_++ == '"' ? std::optional(found) : std::nullopt;
  }
  bool value(FieldCollector& collector) {
    switch (next()) {
      case '"': {
        const auto found = text();
        return found && collector.scalar(*found, true);
      }
      case '[':
        ++at_;
        return collector.start_array(0) && skip(']') && collector.end_array();
      case 't':
        return word("true") && collector.scalar("true", true);
      case 'f':
        return word("false") && collector.scalar("false", true);
      case 'n':
        return word("null") && collector.scalar({}, false);
      default:
        return number(collector);
    }
  }
  bool word(std::string_view expected) {
    const bool there =
        std::string_view(at_, static_cast<std::size_t>(end_ - at_)).starts_with(expected);
    at_ += there ? expected.size() : 0;
    return there;
  }
  // Whole numbers of 64 bits and fractions, no sign and no exponent.
  bool number(FieldCollector& collector) {
    constexpr std::ptrdiff_t kMostDigits = 18;
    const char* const first = at_;
    const std::ptrdiff_t whole = digits();
    bool plain = whole > 0 && whole <= kMostDigits && (*first != '0' || whole == 1);
    if (at_ < end_ && *at_ == '.') {
      ++at_;
      plain = digits() > 0 && plain;
    }
    return plain &&
           collector.scalar(std::string_view(first, static_cast<std::size_t>(at_ - first)), true);
  }
  std::ptrdiff_t digits() {
    const char* const first = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') {
      ++at_;
    }
    return at_ - first;
  }

  const char* at_;
  const char* end_;
};

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
    if (!(list_ < 0 ? parse_plain(line) : parse_without_list(line))) {
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
  bool parse_plain(std::string_view line) {
    collector_.reset();
    return PlainObject(line).read(collector_);
  }
  // Where one list was taken out, it is the field's unless that one has elements still.
  bool parse_without_list(std::string_view line) {
    auto& slot = collector_.slots[static_cast<std::size_t>(list_)];
    lists_.clear();
    if (!take_out_lists(line, slot.name, rest_, lists_) || lists_.size() != 1) {
      return false;
    }
    if (!parse_plain(rest_)) {
      collector_.reset();
      if (!Json::sax_parse(rest_, &collector_)) {
        return false;
      }
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

std::vector<std::string> keys_of_object(std::string_view line, const LineReader& lines) {
  std::vector<std::string> keys;
  FieldCollector collector;
  collector.keys = &keys;
  parse_object(line, collector, lines);
  return keys;
}

std::unique_ptr<RecordSource> open_json_lines(std::unique_ptr<LineReader> lines) {
  return std::make_unique<JsonRecords>(std::move(lines));
}

}  // namespace oomcast::workloads
