// What varies in a search, as written behind --vary:
//
//   max-num-seqs=64,128,256            values
//   max-num-batched-tokens=2048..16384*2    from .. to, times a factor
//   gpu-memory-utilization=0.80..0.96+0.02  from .. to, by a step; the end belongs to it
//   tensor-parallel-size/pipeline-parallel-size=8/1,4/2   flags that go together
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/error.hpp"

namespace oomcast::search {

struct Axis {
  std::vector<std::string> names;                // as written, "_" read as "-"
  std::vector<std::vector<std::string>> values;  // each with one text a name

  [[nodiscard]] std::size_t size() const { return values.size(); }
};

// Adds what is wrong to `problems`; the axis is then empty. A range of more than a million values
// is refused with its count.
Axis parse_axis(std::string_view text, Problems& problems);

// Decimal numbers exactly, so that 0.80 + 8 x 0.02 is 0.96. nullopt for what is no plain decimal
// number of at most nine places.
struct Decimal {
  std::int64_t units = 0;  // value x 10^places
  int places = 0;

  [[nodiscard]] double value() const;
  // The same number with more places. Throws ArithmeticOverflow.
  [[nodiscard]] Decimal with_places(int more) const;
};
std::optional<Decimal> parse_decimal(std::string_view text);
// With at least `places` decimal places.
std::string to_text(const Decimal& number);

}  // namespace oomcast::search
