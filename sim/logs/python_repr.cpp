#include "sim/logs/python_repr.hpp"

#include <cctype>
#include <optional>
#include <string>

#include "sim/core/units_text.hpp"

namespace oomcast::logs {
namespace {

constexpr int kDeepest = 32;
constexpr std::size_t kMostEntries = 4096;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  OrderedJson settings() {
    OrderedJson out = OrderedJson::object();
    skip_blanks();
    const bool dict = take('{');
    if (dict) {
      dict_entries(out, 0);
    } else {
      call_entries(out, 0);
    }
    return out;
  }

 private:
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char letter) {
    if (peek() != letter) {
      return false;
    }
    ++at_;
    return true;
  }
  void skip_blanks() {
    while (std::isspace(static_cast<unsigned char>(peek())) != 0) {
      ++at_;
    }
  }

  // Each returns false where the text cannot be read further.
  bool dict_entries(OrderedJson& out, int depth) {
    for (skip_blanks(); !take('}'); skip_blanks()) {
      const auto key = value(depth + 1);
      skip_blanks();
      if (!key || !take(':')) {
        return false;
      }
      skip_blanks();
      auto entry = value(depth + 1);
      if (!entry || out.size() >= kMostEntries) {
        return false;
      }
      out[key->is_string() ? key->get<std::string>() : key->dump()] = std::move(*entry);
      skip_blanks();
      take(',');
    }
    return true;
  }

  bool call_entries(OrderedJson& out, int depth) {
    for (skip_blanks(); !take(')'); skip_blanks()) {
      const std::string name = word();
      if (name.empty() || !take('=')) {
        return false;
      }
      auto entry = value(depth + 1);
      if (!entry || out.size() >= kMostEntries) {
        return false;
      }
      out[name] = std::move(*entry);
      skip_blanks();
      take(',');
    }
    return true;
  }

  bool list_entries(OrderedJson& out, char close, int depth) {
    for (skip_blanks(); !take(close); skip_blanks()) {
      auto entry = value(depth + 1);
      if (!entry || out.size() >= kMostEntries) {
        return false;
      }
      out.push_back(std::move(*entry));
      skip_blanks();
      take(',');
    }
    return true;
  }

  std::optional<OrderedJson> value(int depth) {
    if (depth > kDeepest) {
      return std::nullopt;
    }
    const char first = peek();
    if (first == '\'' || first == '"') {
      return quoted();
    }
    if (first == '{') {
      ++at_;
      OrderedJson out = OrderedJson::object();
      return dict_entries(out, depth) ? std::optional(std::move(out)) : std::nullopt;
    }
    if (first == '[' || first == '(') {
      ++at_;
      OrderedJson out = OrderedJson::array();
      return list_entries(out, first == '[' ? ']' : ')', depth) ? std::optional(std::move(out))
                                                                : std::nullopt;
    }
    if (first == '<') {
      return enumeration();
    }
    return bare(depth);
  }

  std::optional<OrderedJson> quoted() {
    const char quote = text_[at_++];
    std::string out;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        out += text_[at_] == 'n' ? '\n' : text_[at_] == 't' ? '\t' : text_[at_];
      } else {
        out += text_[at_];
      }
      ++at_;
    }
    return take(quote) ? std::optional<OrderedJson>(std::move(out)) : std::nullopt;
  }

  // <CUDAGraphMode.FULL: (2, 1)> reads as "FULL".
  std::optional<OrderedJson> enumeration() {
    const std::size_t close = text_.find('>', at_);
    if (close == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string_view inside = text_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    const std::string_view member = inside.substr(0, inside.find(':'));
    return std::string(member.substr(member.rfind('.') + 1));
  }

  std::string word() {
    const std::size_t begin = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) != 0 || peek() == '_' ||
           peek() == '.' || peek() == '-' || peek() == '+' || peek() == '/') {
      ++at_;
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  std::optional<OrderedJson> bare(int depth) {
    const std::string name = word();
    if (name.empty() || at_ >= text_.size()) {
      return std::nullopt;  // nothing, or perhaps cut in the middle of the word
    }
    if (take('(')) {
      return call(depth);
    }
    if (name == "None") {
      return OrderedJson(nullptr);
    }
    if (name == "True" || name == "False") {
      return OrderedJson(name == "True");
    }
    if (const auto number = parse_number(name)) {
      const bool whole = name.find_first_not_of("-+0123456789") == std::string::npos;
      constexpr double kExact = 9007199254740992.0;
      return whole && *number<kExact&& * number> - kExact
                 ? OrderedJson(static_cast<std::int64_t>(*number))
                 : OrderedJson(*number);
    }
    return OrderedJson(name);
  }

  // Name('x') reads as "x" (PosixPath and the like), Name(a=1) as an object.
  std::optional<OrderedJson> call(int depth) {
    skip_blanks();
    const char first = peek();
    if (first == '\'' || first == '"') {
      auto out = quoted();
      skip_blanks();
      return out && take(')') ? out : std::nullopt;
    }
    OrderedJson out = OrderedJson::object();
    return call_entries(out, depth) ? std::optional(std::move(out)) : std::nullopt;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

OrderedJson parse_python_settings(std::string_view text) { return Reader(text).settings(); }

}  // namespace oomcast::logs
