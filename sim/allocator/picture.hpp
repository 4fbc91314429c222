// The address space as text, for terminals and failing tests.
#pragma once

#include <cstddef>
#include <string>

#include "sim/allocator/caching_allocator.hpp"

namespace oomcast::allocator {

// A line a segment in address order: number, size, pool, stream, and a bar of at most `width`
// columns, all segments to one scale (the largest mapped run fills the bar), at least one column
// each. A column shows what is in use in it first of all:
//   # allocated   ~ freed, waits for events   . free   (blank) unmapped addresses between
// Addresses behind an expandable segment's last mapped page are cut off.
//
//   #3  large  20.00 MiB  pool 0  stream 0  |####....|
//
std::string draw_address_space(const CachingAllocator& allocator, std::size_t width);

}  // namespace oomcast::allocator
