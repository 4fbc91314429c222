// Expandable segments by arithmetic on paper.
#include <gtest/gtest.h>

#include "sim/allocator/caching_allocator.hpp"

namespace oomcast::allocator {
namespace {

CachingAllocator make(Bytes total, const char* more = "") {
  Problems problems;
  std::vector<std::string> warnings;
  const AllocatorSettings settings = parse_allocator_settings(
      std::string("expandable_segments:True") + more, "conf", problems, warnings);
  problems.raise_if_any();
  return CachingAllocator({.total = total, .addresses = AddressPolicy::kAscending}, settings);
}

// runtime.md 1.12, steps 3 to 6.
TEST(Expandable, OneSegmentGrowsByPages) {
  CachingAllocator allocator = make(80 * kGiB);
  allocator.allocate(Bytes{1'048'577});
  EXPECT_EQ(allocator.stats().reserved, 20 * kMiB);
  allocator.allocate(Bytes{9'437'184});
  EXPECT_EQ(allocator.stats().reserved, 20 * kMiB);
  allocator.allocate(Bytes{10'485'760});  // 10 485 248 B free at the end: one page more
  EXPECT_EQ(allocator.stats().reserved, 40 * kMiB);
  const BlockHandle last = *allocator.allocate(Bytes{11'534'337});
  EXPECT_EQ(allocator.block_size(last), Bytes{11'534'848});
  EXPECT_EQ(allocator.stats().reserved, 40 * kMiB);
  EXPECT_EQ(allocator.stats().segments, 0);
  EXPECT_EQ(allocator.layout().size(), 1U);
  EXPECT_EQ(allocator.layout()[0].size, align_up(90 * kGiB, 20 * kMiB));
}

// runtime.md 1.7: eight of 16 MiB take 7 pages; then four of 32 MiB fit where they lay.
TEST(Expandable, FreedSpaceServesOtherSizes) {
  CachingAllocator allocator = make(80 * kGiB);
  std::vector<BlockHandle> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(*allocator.allocate(16 * kMiB));
  }
  EXPECT_EQ(allocator.stats().reserved, 140 * kMiB);
  for (const BlockHandle block : blocks) {
    allocator.free(block);
  }
  for (int i = 0; i < 4; ++i) {
    allocator.allocate(32 * kMiB);
  }
  EXPECT_EQ(allocator.stats().reserved, 140 * kMiB);
}

TEST(Expandable, OnlyWholePagesInsideFreeBlocksAreUnmapped) {
  CachingAllocator allocator = make(kGiB);
  const BlockHandle head = *allocator.allocate(10 * kMiB);
  const BlockHandle middle = *allocator.allocate(60 * kMiB);  // [10, 70): pages [20, 60) inside
  allocator.allocate(10 * kMiB);
  allocator.free(middle);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved, 40 * kMiB);  // of 80
  EXPECT_EQ(allocator.stats().device_frees, 1);
  const std::vector<SegmentSnapshot> runs = allocator.snapshot();
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].size, 20 * kMiB);
  EXPECT_EQ(runs[1].offset, 60 * kMiB);
  // The hole is filled first, from the free block before it: [10, 20) and two pages.
  EXPECT_EQ(allocator.place(*allocator.allocate(45 * kMiB)).second, 10 * kMiB);
  EXPECT_EQ(allocator.stats().reserved, 80 * kMiB);
  allocator.free(head);
  allocator.verify();
}

TEST(Expandable, AFailedMappingGivesItsPagesBack) {
  CachingAllocator allocator = make(100 * kMiB);
  allocator.allocate(50 * kMiB);  // 3 pages of 20 MiB
  EXPECT_FALSE(allocator.allocate(60 * kMiB));
  EXPECT_EQ(allocator.stats().reserved, 60 * kMiB);
  EXPECT_EQ(allocator.device().free(), 40 * kMiB);
  EXPECT_TRUE(allocator.allocate(50 * kMiB));  // 10 MiB free and 2 pages
  EXPECT_EQ(allocator.device().free(), Bytes{});
}

TEST(Expandable, ASegmentGoesWhenNothingIsMapped) {
  CachingAllocator allocator = make(kGiB);
  Trace trace;
  allocator.trace_to(&trace);
  allocator.free(*allocator.allocate(30 * kMiB));
  allocator.empty_cache();
  EXPECT_TRUE(allocator.layout().empty());
  ASSERT_FALSE(trace.empty());
  EXPECT_EQ(trace.back().action, Action::kUnreserve);
  EXPECT_EQ(allocator.place(*allocator.allocate(30 * kMiB)).first, 1);
}

TEST(Expandable, AFullRangeOpensAnotherAndALargerRequestFails) {
  CachingAllocator allocator = make(kGiB, ",expandable_segments_reserve:0.05");  // 3 pages
  allocator.allocate(50 * kMiB);
  EXPECT_EQ(allocator.place(*allocator.allocate(50 * kMiB)).first, 1);
  EXPECT_FALSE(allocator.allocate(61 * kMiB));
  EXPECT_TRUE(allocator.allocate(60 * kMiB));
}

TEST(Expandable, SwitchedOffTheyAreLeftAlone) {
  CachingAllocator allocator = make(kGiB);
  allocator.free(*allocator.allocate(30 * kMiB));
  AllocatorSettings settings = allocator.settings();
  settings.expandable_segments = false;
  allocator.set_settings(settings);
  EXPECT_EQ(allocator.place(*allocator.allocate(30 * kMiB)).first, 1);
  EXPECT_EQ(allocator.stats().segments, 1);
}

}  // namespace
}  // namespace oomcast::allocator
