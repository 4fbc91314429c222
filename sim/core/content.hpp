// What tokens are, without holding them: token i of segment s is the pair (s, i), and equal pairs
// mean equal content. A prompt is a list of pieces of segments; a trace with block ids never
// expands tokens.
#pragma once

#include <cstdint>

#include "sim/core/digest.hpp"
#include "sim/core/units.hpp"

namespace oomcast {

struct ContentSegment {
  std::uint64_t id = 0;
  Tokens length;
  std::int64_t offset = 0;  // of its first token in the segment

  // Whether `next` goes on where this piece ends.
  [[nodiscard]] bool continues(const ContentSegment& next) const {
    return id == next.id && offset + length.count() == next.offset;
  }
  friend bool operator==(const ContentSegment&, const ContentSegment&) = default;
};

// Segment ids of content nobody shares: outside of what traces use as ids, as good as never met.
inline std::uint64_t private_segment(std::uint64_t serial) {
  return mix64(serial ^ 0x7072697661746521ULL) | (std::uint64_t{1} << 63);
}

}  // namespace oomcast
