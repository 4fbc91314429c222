// Which rows of the tables a line matches, in one pass over the line, and what their groups hold.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sim/logs/templates.hpp"

namespace oomcast::logs {

struct Match {
  const Table* table = nullptr;
  const Row* row = nullptr;
  // Text of the captures, in order; empty where the group took no part.
  std::array<std::string_view, kMostCaptures> groups{};
};

class Matcher {
 public:
  // Tables must outlive the matcher. A pattern that RE2 does not take is a bug and aborts.
  explicit Matcher(std::span<const Table> tables);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // In the order of the tables; the views live as long as `line`.
  void match(std::string_view line, std::vector<Match>& found) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace oomcast::logs
