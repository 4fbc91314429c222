#include "sim/search/condition.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

namespace oomcast::search {
namespace {

constexpr int kDeepest = 64;

class Reader {
 public:
  Reader(std::string_view text, std::vector<std::string>& names) : text_(text), names_(names) {}

  Condition::Term sum() {
    Condition::Term left = product();
    for (;;) {
      if (accept('+')) {
        left = both(std::move(left), product(), [](double a, double b) { return a + b; });
      } else if (accept('-')) {
        left = both(std::move(left), product(), [](double a, double b) { return a - b; });
      } else {
        return left;
      }
    }
  }

  std::string comparison() {
    static constexpr std::array<std::string_view, 6> kSigns = {"<=", ">=", "==", "!=", "<", ">"};
    skip_blanks();
    for (const std::string_view sign : kSigns) {
      if (text_.substr(at_).starts_with(sign)) {
        at_ += sign.size();
        return std::string(sign);
      }
    }
    fail("<=, >=, ==, !=, < or >");
  }

  void end() {
    skip_blanks();
    if (at_ != text_.size()) {
      fail("the end of the condition");
    }
  }

 private:
  template <typename Operation>
  static Condition::Term both(Condition::Term left, Condition::Term right, Operation operation) {
    return [left = std::move(left), right = std::move(right), operation](
               const Condition::Lookup& lookup) { return operation(left(lookup), right(lookup)); };
  }

  Condition::Term product() {
    Condition::Term left = value();
    for (;;) {
      if (accept('*')) {
        left = both(std::move(left), value(), [](double a, double b) { return a * b; });
      } else if (accept('/')) {
        left = both(std::move(left), value(), [](double a, double b) { return a / b; });
      } else if (accept('%')) {
        left = both(std::move(left), value(), [](double a, double b) { return std::fmod(a, b); });
      } else {
        return left;
      }
    }
  }

  Condition::Term value() {
    skip_blanks();
    if (accept('(')) {
      if (++depth_ > kDeepest) {
        fail("fewer brackets");
      }
      Condition::Term inner = sum();
      if (!accept(')')) {
        fail("a closing bracket");
      }
      --depth_;
      return inner;
    }
    double number = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), number);
    if (error == std::errc{} && end != begin) {
      at_ += static_cast<std::size_t>(end - begin);
      return [number](const Condition::Lookup& /*lookup*/) { return number; };
    }
    std::string name;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_')) {
      name += text_[at_++];
    }
    if (name.empty()) {
      fail("a number, a name or a bracket");
    }
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) {
      names_.push_back(name);
    }
    return [name](const Condition::Lookup& lookup) { return lookup(name); };
  }

  bool accept(char letter) {
    skip_blanks();
    const bool there = at_ < text_.size() && text_[at_] == letter;
    at_ += there ? 1 : 0;
    return there;
  }
  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    }
  }
  [[noreturn]] void fail(const std::string& expected) {
    throw ConfigError(Problem{"command line", "--where",
                              fmt::format("{} (at letter {})", text_, at_ + 1), expected,
                              "e.g. tp*pp<=8; names are flags with _ for -"});
  }

  std::string_view text_;
  std::vector<std::string>& names_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Condition::Condition(std::string text) : text_(std::move(text)) {
  Reader reader(text_, names_);
  left_ = reader.sum();
  comparison_ = reader.comparison();
  right_ = reader.sum();
  reader.end();
}

bool Condition::holds(const Lookup& value_of) const {
  const double left = left_(value_of);
  const double right = right_(value_of);
  if (comparison_ == "<=") {
    return left <= right;
  }
  if (comparison_ == ">=") {
    return left >= right;
  }
  if (comparison_ == "==") {
    return left == right;
  }
  if (comparison_ == "!=") {
    return left != right;
  }
  return comparison_ == "<" ? left < right : left > right;
}

}  // namespace oomcast::search
