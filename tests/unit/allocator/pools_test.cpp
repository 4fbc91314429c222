// Private pools and captures.
#include <gtest/gtest.h>

#include "sim/allocator/caching_allocator.hpp"

namespace oomcast::allocator {
namespace {

constexpr PoolId kGraphs{1};
constexpr StreamId kSide{1};

CachingAllocator make(Bytes total = kGiB) {
  return CachingAllocator({.total = total, .addresses = AddressPolicy::kAscending},
                          AllocatorSettings{});
}

void begin_graph(CachingAllocator& allocator) {
  allocator.begin_pool(kGraphs, kSide);
  allocator.begin_capture(kSide);
}
void end_graph(CachingAllocator& allocator) {
  allocator.end_capture(kSide);
  allocator.end_pool(kGraphs);
}

TEST(Pools, ACaptureReusesItsOwnMemoryAndKeepsIt) {
  CachingAllocator allocator = make();
  begin_graph(allocator);
  allocator.free(*allocator.allocate(40 * kMiB, kSide));
  const BlockHandle output = *allocator.allocate(30 * kMiB, kSide);
  EXPECT_EQ(allocator.pool(output), kGraphs);
  EXPECT_EQ(allocator.pool(*allocator.allocate(30 * kMiB)), PoolId::kDefault);  // other stream
  end_graph(allocator);
  EXPECT_EQ(allocator.stats().reserved, 70 * kMiB);
  // The next graph of the pool finds the first one's free memory.
  begin_graph(allocator);
  EXPECT_EQ(allocator.place(*allocator.allocate(10 * kMiB, kSide)).first, 0);
  end_graph(allocator);
  allocator.free(output);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved, 70 * kMiB);
}

TEST(Pools, MemoryReturnsAfterTheLastUse) {
  CachingAllocator allocator = make();
  begin_graph(allocator);
  const BlockHandle output = *allocator.allocate(40 * kMiB, kSide);
  end_graph(allocator);
  allocator.release_pool(kGraphs);
  EXPECT_FALSE(allocator.has_uses(kGraphs));
  allocator.empty_cache();
  EXPECT_TRUE(allocator.exists(kGraphs));  // an output lives
  allocator.free(output);
  allocator.empty_cache(kGraphs);
  EXPECT_FALSE(allocator.exists(kGraphs));
  EXPECT_EQ(allocator.stats().reserved, Bytes{});
}

TEST(Pools, WithinACaptureNothingIsReleasedToRetry) {
  CachingAllocator allocator = make(100 * kMiB);
  allocator.free(*allocator.allocate(60 * kMiB));
  begin_graph(allocator);
  EXPECT_FALSE(allocator.allocate(60 * kMiB, kSide));
  EXPECT_EQ(allocator.stats().alloc_retries, 0);
  EXPECT_EQ(allocator.stats().reserved, 60 * kMiB);
  allocator.set_current_stream(StreamId::kDefault);  // not the captured one
  EXPECT_TRUE(allocator.allocate(60 * kMiB, kSide));
  EXPECT_EQ(allocator.stats().alloc_retries, 1);
}

TEST(Pools, UsesRecordedOnlyWithinACaptureNeedNoEvents) {
  CachingAllocator allocator = make();
  const BlockHandle outside = *allocator.allocate(20 * kMiB);
  allocator.record_stream(outside, StreamId{2});
  begin_graph(allocator);
  const BlockHandle inside = *allocator.allocate(20 * kMiB, kSide);
  allocator.record_stream(inside, StreamId{2});
  allocator.free(inside);
  allocator.free(outside);
  EXPECT_EQ(allocator.stats().active, 40 * kMiB);
  end_graph(allocator);
  allocator.allocate(Bytes{1});  // polls
  EXPECT_EQ(allocator.stats().active, 20 * kMiB + Bytes{512});
  allocator.complete_events(StreamId{2}, 1);
  allocator.allocate(Bytes{1});
  EXPECT_EQ(allocator.stats().active, Bytes{1024});
}

// Emptying one pool waits for that pool's events; the ones before them on the same stream are
// complete then, those behind are not.
TEST(Pools, WaitingForAPoolsEventsCompletesEarlierOnes) {
  CachingAllocator allocator = make();
  const BlockHandle before = *allocator.allocate(20 * kMiB);
  allocator.begin_pool(kGraphs, std::nullopt);
  const BlockHandle pooled = *allocator.allocate(22 * kMiB);
  allocator.end_pool(kGraphs);
  const BlockHandle behind = *allocator.allocate(24 * kMiB);
  for (const BlockHandle block : {before, pooled, behind}) {
    allocator.record_stream(block, kSide);
    allocator.free(block);
  }
  allocator.release_pool(kGraphs);
  allocator.empty_cache(kGraphs);
  EXPECT_EQ(allocator.stats().active, 44 * kMiB);
  EXPECT_EQ(allocator.stats().reserved, 44 * kMiB);
  allocator.allocate(Bytes{1});
  EXPECT_EQ(allocator.stats().active, 24 * kMiB + Bytes{512});
  allocator.complete_events(kSide, 1);
  allocator.allocate(Bytes{1});
  EXPECT_EQ(allocator.stats().active, Bytes{1024});
}

TEST(Pools, TheInnermostRouteThatTakesTheStreamDecides) {
  CachingAllocator allocator = make();
  allocator.begin_pool(PoolId{1}, std::nullopt);
  allocator.begin_pool(PoolId{2}, kSide);
  EXPECT_EQ(allocator.pool(*allocator.allocate(kMiB, kSide)), PoolId{2});
  EXPECT_EQ(allocator.pool(*allocator.allocate(kMiB)), PoolId{1});
  allocator.end_pool(PoolId{1});
  EXPECT_EQ(allocator.pool(*allocator.allocate(kMiB)), PoolId::kDefault);
}

TEST(Pools, APoolMarkedForItLendsFreeBlocksBeforeAnythingIsReleased) {
  CachingAllocator allocator = make(100 * kMiB);
  allocator.begin_pool(kGraphs, std::nullopt);
  allocator.free(*allocator.allocate(60 * kMiB));
  allocator.end_pool(kGraphs);
  allocator.allocate(40 * kMiB);
  EXPECT_FALSE(allocator.allocate(30 * kMiB));
  allocator.set_use_on_oom(kGraphs, true);
  EXPECT_EQ(allocator.pool(*allocator.allocate(30 * kMiB)), kGraphs);
  EXPECT_EQ(allocator.stats().alloc_retries, 1);  // of the failure before
}

TEST(Pools, WithoutSplittingEachRequestTakesAWholeSegment) {
  CachingAllocator allocator = make();
  allocator.set_no_split(kGraphs, true);
  allocator.begin_pool(kGraphs, std::nullopt);
  EXPECT_EQ(allocator.block_size(*allocator.allocate(Bytes{100})), 2 * kMiB);
  EXPECT_EQ(allocator.block_size(*allocator.allocate(3 * kMiB)), 20 * kMiB);
}

}  // namespace
}  // namespace oomcast::allocator
