// How tokens choose their experts: a model of imbalance. Real gates are not uniform: a few experts
// of a layer get several times their share, which ones differs by layer and drifts with the text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/json.hpp"

namespace oomcast::experts {

struct Routing {
  enum class Kind : std::uint8_t {
    kUniform,
    kZipf,   // the i-th most popular expert of a layer has weight i^-skew
    kTable,  // weights of each layer's experts, counted elsewhere
  };
  Kind kind = Kind::kUniform;
  double skew = 0;
  // Bursts: in each window the most popular experts of all layers together get this many times
  // their weight.
  double burst = 1;
  // Popularity rotates: in each window another order of experts holds.
  int windows = 1;
  std::uint64_t seed = 1;
  std::vector<std::vector<double>> table;  // a row a layer, or one row for all

  // As it is written on the command line.
  [[nodiscard]] std::string text() const;
  friend bool operator==(const Routing&, const Routing&) = default;
};

// "uniform", "zipf:S[,burst=B][,windows=N][,seed=N]" or "file:PATH" (JSON: a list of lists of
// counts, one a layer; or one list). Throws ConfigError with all problems.
Routing parse_routing(const std::string& text);
// The table of such a file; `source` names it in complaints.
Routing routing_of_table(const Json& table, const std::string& source);

// The expected number of times that one token picks each expert of a layer in a window: sums to
// `picks`, and no more than 1 each, since a token picks an expert at most once. Throws ConfigError
// for a table of another width or too few rows.
std::vector<double> expert_shares(const Routing& routing, int layer, int window,
                                  std::int64_t experts, std::int64_t picks);

}  // namespace oomcast::experts
