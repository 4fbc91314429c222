#include <simdjson.h>

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

// An object of texts, numbers and empty lists, as most rows are, read by simdjson.
class PlainObject {
 public:
  // Tells the collector what the parser would; `line` gets room behind its end. False for anything
  // else, JSON or not: the parser is to read the line, the collector is in an unknown state.
  bool read(std::string& line, FieldCollector& collector) {
    line.reserve(line.size() + simdjson::SIMDJSON_PADDING);
    collector.start_object(0);
    try {
      simdjson::ondemand::document document =
          parser_.iterate(line.data(), line.size(), line.capacity());
      for (auto field : document.get_object()) {
        collector.enter(std::string_view(field.unescaped_key()));
        if (!tell(field.value(), collector)) {
          return false;
        }
      }
      return document.current_location().error() == simdjson::OUT_OF_BOUNDS;  // nothing follows
    } catch (const simdjson::simdjson_error&) {
      return false;
    }
  }

 private:
  using Value = simdjson::ondemand::value;

  static bool tell(Value value, FieldCollector& collector) {
    switch (value.type()) {
      case simdjson::ondemand::json_type::string:
        return collector.scalar(std::string_view(value.get_string()), true);
      case simdjson::ondemand::json_type::number: {
        // As written, which a double would not keep, once it is known to be a number.
        const std::string_view written = value.raw_json_token();
        value.get_number().value();
        // The parser takes the sign off -0.
        return written.front() != '-' &&
               collector.scalar(written.substr(0, written.find_last_not_of(" \t\r\n") + 1), true);
      }
      case simdjson::ondemand::json_type::array: {
        simdjson::ondemand::array list = value.get_array();
        return list.is_empty() && collector.start_array(0) && collector.end_array();
      }
      default:
        return false;
    }
  }

  simdjson::ondemand::parser parser_;
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
    if (!(list_ < 0 ? parse_plain(rest_.assign(line)) : parse_without_list(line))) {
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
  bool parse_plain(std::string& line) {
    collector_.reset();
    return plain_.read(line, collector_);
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
  PlainObject plain_;
  int list_ = -1;
  std::string rest_;  // a line, or what is left of it
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
