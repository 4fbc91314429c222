// What tokens are, without holding them: a prompt is a list of segments, token i of segment s is
// the pair (s, i), and equal pairs mean equal content. A trace with block ids never expands tokens.
#pragma once

#include <cstdint>

#include "sim/core/units.hpp"

namespace oomcast {

struct ContentSegment {
  std::uint64_t id = 0;
  Tokens length;

  friend bool operator==(const ContentSegment&, const ContentSegment&) = default;
};

}  // namespace oomcast
