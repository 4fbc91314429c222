// What must hold of a point for it to be looked at: "tp*pp<=8", "max_num_seqs <= 2*chunk".
//
//   condition  = sum ("<=" | ">=" | "==" | "!=" | "<" | ">") sum
//   sum        = product {("+" | "-") product}
//   product    = value {("*" | "/" | "%") value}
//   value      = number | name | "(" sum ")"
//
// Names are flags with "_" for "-".
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/error.hpp"

namespace oomcast::search {

class Condition {
 public:
  // Throws ConfigError with the place of what cannot be read.
  explicit Condition(std::string text);

  [[nodiscard]] const std::string& text() const { return text_; }
  // Every name in it, once.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  using Lookup = std::function<double(const std::string& name)>;
  [[nodiscard]] bool holds(const Lookup& value_of) const;

  // A term of either side; made by the reader.
  using Term = std::function<double(const Lookup&)>;

 private:
  std::string text_;
  std::vector<std::string> names_;
  Term left_;
  Term right_;
  std::string comparison_;
};

}  // namespace oomcast::search
