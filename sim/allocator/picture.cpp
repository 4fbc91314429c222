#include "sim/allocator/picture.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace oomcast::allocator {
namespace {

// What outshines what in a column that shows several blocks.
char glyph(BlockUse use) {
  switch (use) {
    case BlockUse::kAllocated:
      return '#';
    case BlockUse::kPendingFree:
      return '~';
    case BlockUse::kFree:
      return '.';
    case BlockUse::kUnmapped:
      return ' ';
  }
  return '?';
}

int rank(char glyph) {
  constexpr std::string_view kByRank = " .~#";
  return static_cast<int>(kByRank.find(glyph));
}

// Up to the last mapped byte.
Bytes extent(const SegmentLayout& segment) {
  Bytes end;
  Bytes mapped_end;
  for (const BlockLayout& block : segment.blocks) {
    end += block.size;
    mapped_end = block.use == BlockUse::kUnmapped ? mapped_end : end;
  }
  return mapped_end;
}

std::string bar(const SegmentLayout& segment, Bytes longest, std::size_t width) {
  const Bytes length = extent(segment);
  // In doubles: sizes times columns may pass 64 bits, and a column is wide.
  const auto column = [&](Bytes offset) {
    return static_cast<std::size_t>(static_cast<double>(offset.count()) /
                                    static_cast<double>(longest.count()) *
                                    static_cast<double>(width));
  };
  std::string line(std::max<std::size_t>(length > Bytes{} ? 1 : 0, column(length)), ' ');
  Bytes start;
  for (const BlockLayout& block : segment.blocks) {
    const Bytes end = start + block.size;
    const std::size_t first = column(start);
    for (std::size_t i = first; i < line.size() && (i == first || i < column(end)); ++i) {
      if (rank(glyph(block.use)) > rank(line[i])) {
        line[i] = glyph(block.use);
      }
    }
    start = end;
  }
  return line;
}

}  // namespace

std::string draw_address_space(const CachingAllocator& allocator, std::size_t width) {
  const std::vector<SegmentLayout> segments = allocator.layout();
  Bytes longest = kKiB;
  for (const SegmentLayout& segment : segments) {
    longest = std::max(longest, extent(segment));
  }
  std::string picture;
  for (const SegmentLayout& segment : segments) {
    picture += fmt::format("#{:<4} {} {:>11}  pool {}  stream {}  |{}|\n", segment.number,
                           segment.is_small ? "small" : "large", format_torch_size(extent(segment)),
                           static_cast<std::int64_t>(segment.pool),
                           static_cast<std::int64_t>(segment.stream), bar(segment, longest, width));
  }
  return picture;
}

}  // namespace oomcast::allocator
