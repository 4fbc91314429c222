// What tokens are, without holding them: a prompt is a list of segments, token i of segment s is
// the pair (s, i), and equal pairs mean equal content. A trace with block ids never expands tokens.
#pragma once

#include <cstdint>

#include "sim/core/digest.hpp"
#include "sim/core/units.hpp"

namespace oomcast {

struct ContentSegment {
  std::uint64_t id = 0;
  Tokens length;

  friend bool operator==(const ContentSegment&, const ContentSegment&) = default;
};

// Segment ids of content nobody shares: outside of what traces use as ids, as good as never met.
inline std::uint64_t private_segment(std::uint64_t serial) {
  return mix64(serial ^ 0x7072697661746521ULL) | (std::uint64_t{1} << 63);
}

}  // namespace oomcast
