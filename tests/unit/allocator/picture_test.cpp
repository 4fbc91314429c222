#include "sim/allocator/picture.hpp"

#include <gtest/gtest.h>

namespace oomcast::allocator {
namespace {

TEST(Picture, ShowsSegmentsToOneScale) {
  CachingAllocator allocator({.total = kGiB, .addresses = AddressPolicy::kAscending},
                             AllocatorSettings{});
  EXPECT_EQ(draw_address_space(allocator, 20), "");
  allocator.allocate(Bytes{512});
  allocator.allocate(5 * kMiB);
  const BlockHandle pending = *allocator.allocate(5 * kMiB);
  allocator.record_stream(pending, StreamId{1});
  allocator.free(pending);
  allocator.allocate(40 * kMiB, StreamId{3});
  // 40 MiB fill 40 columns; 2 MiB are 2, of which the first holds the 512 B.
  EXPECT_EQ(draw_address_space(allocator, 40),
            "#0    small    2.00 MiB  pool 0  stream 0  |#.|\n"
            "#1    large   20.00 MiB  pool 0  stream 0  |#####~~~~~..........|\n"
            "#2    large   40.00 MiB  pool 0  stream 3  "
            "|########################################|\n");
}

TEST(Picture, LeavesUnmappedAddressesBlank) {
  Problems problems;
  std::vector<std::string> warnings;
  CachingAllocator allocator({.total = kGiB}, parse_allocator_settings("expandable_segments:True",
                                                                       "conf", problems, warnings));
  const BlockHandle first = *allocator.allocate(40 * kMiB);
  allocator.allocate(30 * kMiB);
  allocator.free(first);
  allocator.empty_cache();
  EXPECT_EQ(draw_address_space(allocator, 8),
            "#0    large   80.00 MiB  pool 0  stream 0  |    ###.|\n");
}

}  // namespace
}  // namespace oomcast::allocator
