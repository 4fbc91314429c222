// The plain allocator by arithmetic on paper; streams and events; limits and what is reported.
#include "sim/allocator/caching_allocator.hpp"

#include <gtest/gtest.h>

#include <string>

namespace oomcast::allocator {
namespace {

CachingAllocator make(std::string_view conf = "", Bytes total = 80 * kGiB) {
  Problems problems;
  std::vector<std::string> warnings;
  const AllocatorSettings settings = parse_allocator_settings(conf, "conf", problems, warnings);
  problems.raise_if_any();
  return CachingAllocator({.total = total, .addresses = AddressPolicy::kAscending}, settings);
}

std::pair<std::int64_t, Bytes> at(std::int64_t segment, std::int64_t offset) {
  return {segment, Bytes{offset}};
}

// runtime.md 1.12, steps 1 to 6.
TEST(CachingAllocator, SizesAreRoundedCutAndPooledAsOnPaper) {
  CachingAllocator allocator = make();
  const auto allocate = [&](std::int64_t size) { return *allocator.allocate(Bytes{size}); };
  EXPECT_EQ(allocator.block_size(allocate(1)), Bytes{512});
  // Cut from the rest of the same 2 MiB: 2 097 152 - 512 - 1 048 576 = 1 048 064 stay.
  EXPECT_EQ(allocator.place(allocate(1'048'576)), at(0, 512));
  EXPECT_EQ(allocator.place(allocate(1'048'577)), at(1, 0));  // large: 20 MiB
  EXPECT_EQ(allocator.place(allocate(9'437'184)), at(1, 1'049'088));
  // 10 485 248 B are left of the 20 MiB, 512 too few.
  const BlockHandle ten_mib = allocate(10'485'760);
  EXPECT_EQ(allocator.place(ten_mib), at(2, 0));
  // 12 MiB segment; its rest of 1 048 064 B is not more than 1 MiB, so it is not cut.
  EXPECT_EQ(allocator.block_size(allocate(11'534'337)), 12 * kMiB);

  const AllocatorStats& stats = allocator.stats();
  EXPECT_EQ(stats.requested, Bytes{33'554'435});
  EXPECT_EQ(stats.allocated, Bytes{34'604'032});
  EXPECT_EQ(stats.inactive_split, Bytes{11'533'312});
  EXPECT_EQ(stats.reserved, 44 * kMiB);
  EXPECT_EQ(stats.segments, 4);

  // Best fit is the rest of 10 485 248 B, not the freed 10 485 760 B; what would be left is too
  // small to cut.
  allocator.free(ten_mib);
  const BlockHandle fit = allocate(10'000'000);
  EXPECT_EQ(allocator.place(fit), at(1, 10'486'272));
  EXPECT_EQ(allocator.block_size(fit), Bytes{10'485'248});
}

TEST(CachingAllocator, PowerOfTwoDivisionsRoundUp) {
  CachingAllocator allocator = make("roundup_power2_divisions:4");
  // 2^30 < 1.2e9 < 2^31, in steps of 2^28.
  EXPECT_EQ(allocator.block_size(*allocator.allocate(Bytes{1'200'000'000})), Bytes{1'342'177'280});
  EXPECT_EQ(allocator.block_size(*allocator.allocate(Bytes{1 << 30})), kGiB);
  EXPECT_EQ(allocator.block_size(*allocator.allocate(Bytes{2048})), Bytes{2048});  // 512 * 4
  EXPECT_EQ(allocator.block_size(*allocator.allocate(Bytes{2049})), Bytes{2560});
}

TEST(CachingAllocator, ZeroBytesNeverReachIt) {
  CachingAllocator allocator = make();
  EXPECT_EQ(allocator.allocate(Bytes{}), BlockHandle::kNull);
  EXPECT_EQ(allocator.stats(), AllocatorStats{});
}

TEST(CachingAllocator, FreedNeighboursJoinFromBothSides) {
  CachingAllocator allocator = make();
  const BlockHandle left = *allocator.allocate(2 * kMiB);
  const BlockHandle middle = *allocator.allocate(2 * kMiB);
  const BlockHandle right = *allocator.allocate(2 * kMiB);
  allocator.free(left);
  allocator.free(right);  // joins the 14 MiB behind it
  EXPECT_EQ(allocator.stats().inactive_split_blocks, 2);
  allocator.free(middle);
  ASSERT_EQ(allocator.snapshot().size(), 1U);
  EXPECT_EQ(allocator.snapshot()[0].blocks.size(), 1U);
  EXPECT_EQ(allocator.stats().inactive_split, Bytes{});
}

// Equal sizes go by age of the segment, though the older one has the higher address here.
TEST(CachingAllocator, TiesGoToTheOlderSegment) {
  CachingAllocator allocator({.total = kGiB, .addresses = AddressPolicy::kDescending},
                             AllocatorSettings{});
  const BlockHandle older = *allocator.allocate(20 * kMiB);
  const BlockHandle younger = *allocator.allocate(20 * kMiB);
  EXPECT_GT(allocator.address(older), allocator.address(younger));
  allocator.free(younger);
  allocator.free(older);
  EXPECT_EQ(allocator.place(*allocator.allocate(20 * kMiB)).first, 0);
}

TEST(CachingAllocator, StreamsDoNotShareCachedMemory) {
  CachingAllocator allocator = make();
  allocator.free(*allocator.allocate(20 * kMiB));
  EXPECT_EQ(allocator.place(*allocator.allocate(20 * kMiB, StreamId{1})).first, 1);
  EXPECT_EQ(allocator.place(*allocator.allocate(20 * kMiB)).first, 0);
}

TEST(CachingAllocator, ABlockUsedElsewhereWaitsForAllItsEvents) {
  CachingAllocator allocator = make();
  const BlockHandle block = *allocator.allocate(20 * kMiB);
  allocator.record_stream(block, StreamId{1});
  allocator.record_stream(block, StreamId{2});
  allocator.record_stream(block, StreamId::kDefault);  // its own stream needs no event
  allocator.free(block);
  EXPECT_EQ(allocator.stats().allocated, Bytes{});
  EXPECT_EQ(allocator.stats().active, 20 * kMiB);
  allocator.complete_events(StreamId{1}, 1);
  EXPECT_EQ(allocator.place(*allocator.allocate(20 * kMiB)).first, 1);  // not reusable yet
  allocator.complete_events(StreamId{2}, 0);
  EXPECT_EQ(allocator.stats().active, 40 * kMiB);  // complete, but polled only now:
  EXPECT_EQ(allocator.place(*allocator.allocate(20 * kMiB)).first, 0);
}

TEST(CachingAllocator, MemoryReturnsOnlyAsWholeSegments) {
  CachingAllocator allocator = make();
  const BlockHandle kept = *allocator.allocate(2 * kMiB);
  const BlockHandle large = *allocator.allocate(40 * kMiB);
  allocator.free(*allocator.allocate(Bytes{1}));
  allocator.free(large);
  EXPECT_EQ(allocator.stats().reserved, 62 * kMiB);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved, 20 * kMiB);  // the one with a live block
  allocator.free(kept);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved, Bytes{});
  EXPECT_EQ(allocator.device().used(), Bytes{});
  EXPECT_EQ(allocator.stats().sync_all_streams, 2);
}

TEST(CachingAllocator, ARetryReleasesTheCacheAndFitsToTheLastUnit) {
  CachingAllocator allocator = make("", 100 * kMiB);
  allocator.free(*allocator.allocate(60 * kMiB));
  const BlockHandle all = *allocator.allocate(100 * kMiB);
  EXPECT_EQ(allocator.stats().alloc_retries, 1);
  EXPECT_EQ(allocator.stats().ooms, 0);
  EXPECT_FALSE(allocator.allocate(Bytes{1}));
  EXPECT_EQ(allocator.stats().ooms, 1);
  allocator.free(all);
  EXPECT_FALSE(allocator.allocate(100 * kMiB + Bytes{1}));
}

TEST(CachingAllocator, OutOfMemoryReadsAsPyTorchPrintsIt) {
  CachingAllocator allocator({.total = kGiB, .base_used = 12 * kMiB}, AllocatorSettings{});
  allocator.set_memory_fraction(0.087890625);  // 90 MiB
  for (int i = 0; i < 4; ++i) {
    allocator.allocate(20 * kMiB);
  }
  EXPECT_FALSE(allocator.allocate(Bytes{3'149'670}));
  const OutOfMemory& oom = allocator.last_oom();
  EXPECT_EQ(oom.segment, 20 * kMiB);
  EXPECT_EQ(oom.limit, 90 * kMiB);
  EXPECT_EQ(oom.short_by(), 10 * kMiB);
  EXPECT_EQ(
      oom.message(),
      "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 1024.00 MiB "
      "of which 932.00 MiB is free. Including non-PyTorch memory, this process has 92.00 MiB "
      "memory in use. 90.00 MiB allowed; Of the allocated memory 80.00 MiB is allocated by "
      "PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated "
      "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
      "fragmentation.  See documentation for Memory Management  "
      "(https://docs.pytorch.org/docs/stable/notes/"
      "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)");
}

TEST(CachingAllocator, SizesBeyondAnExabyteAreRefused) {
  CachingAllocator allocator = make();
  EXPECT_FALSE(allocator.allocate(Bytes{std::int64_t{1} << 60}));
  EXPECT_EQ(allocator.last_oom().message(),
            "CUDA out of memory. Tried to allocate more than 1EB memory.");
  EXPECT_EQ(allocator.stats().ooms, 0);
  EXPECT_FALSE(allocator.allocate(Bytes{(std::int64_t{1} << 60) - 1}));
  EXPECT_EQ(allocator.stats().ooms, 1);
}

TEST(CachingAllocator, EarlyRejectionAsksTheDriverNothing) {
  CachingAllocator allocator = make("throw_on_cudamalloc_oom:True", 100 * kMiB);
  allocator.free(*allocator.allocate(60 * kMiB));
  EXPECT_FALSE(allocator.allocate(60 * kMiB + Bytes{1}));  // 60 + 62 MiB
  EXPECT_EQ(allocator.stats().oom_rejections, 1);
  EXPECT_EQ(allocator.stats().ooms, 0);
  EXPECT_EQ(allocator.stats().reserved, 60 * kMiB);
  EXPECT_EQ(allocator.last_oom().kind, OutOfMemory::Kind::kRejected);
}

TEST(CachingAllocator, OversizeBlocksAreNeitherCutNorWasted) {
  CachingAllocator allocator = make("max_split_size_mb:40");
  allocator.free(*allocator.allocate(100 * kMiB));
  EXPECT_EQ(allocator.place(*allocator.allocate(39 * kMiB)).first, 1);
  EXPECT_EQ(allocator.place(*allocator.allocate(80 * kMiB)).first, 2);  // 100 >= 80 + 20
  const BlockHandle near = *allocator.allocate(82 * kMiB);
  EXPECT_EQ(allocator.place(near).first, 0);
  EXPECT_EQ(allocator.block_size(near), 100 * kMiB);
  // Of 100, 80 and 40 MiB: the 39 MiB keep the last of their segment of 40.
  EXPECT_EQ(allocator.stats().oversize_allocations, 3);
}

TEST(CachingAllocator, GarbageCollectionFreesTheOldHalf) {
  CachingAllocator allocator = make("garbage_collection_threshold:0.5", 200 * kMiB);
  allocator.set_memory_fraction(0.9);  // collects above 90 MiB
  const BlockHandle first = *allocator.allocate(40 * kMiB);
  const BlockHandle second = *allocator.allocate(42 * kMiB);
  allocator.free(first);
  allocator.free(*allocator.allocate(44 * kMiB));
  allocator.free(second);
  // 126 MiB are reserved. The first is two searches old, the 44 MiB and 42 MiB none or one.
  EXPECT_EQ(allocator.stats().reserved, 126 * kMiB);
  allocator.allocate(46 * kMiB);
  EXPECT_LT(allocator.stats().reserved, (126 + 46) * kMiB);
  EXPECT_EQ(allocator.stats().alloc_retries, 0);
}

TEST(CachingAllocator, CopiesGoOnAlikeAndApart) {
  CachingAllocator allocator = make();
  const BlockHandle block = *allocator.allocate(3 * kMiB);
  CachingAllocator copy = allocator;
  EXPECT_EQ(copy.state_digest(), allocator.state_digest());
  copy.free(block);  // the handle means the same block there
  EXPECT_NE(copy.state_digest(), allocator.state_digest());
  EXPECT_EQ(allocator.stats().allocated, 3 * kMiB);
  EXPECT_EQ(copy.allocate(3 * kMiB), block);
  EXPECT_EQ(copy.state_digest(), allocator.state_digest());
}

TEST(CachingAllocator, PeaksCanBeReset) {
  CachingAllocator allocator = make();
  allocator.free(*allocator.allocate(30 * kMiB));
  EXPECT_EQ(allocator.stats().allocated_peak, 30 * kMiB);
  allocator.reset_peaks();
  EXPECT_EQ(allocator.stats().allocated_peak, Bytes{});
  EXPECT_EQ(allocator.stats().reserved_peak, 30 * kMiB);
}

TEST(CachingAllocator, TracesWhatPyTorchTraces) {
  CachingAllocator allocator = make();
  Trace trace;
  allocator.trace_to(&trace);
  const BlockHandle block = *allocator.allocate(3 * kMiB, StreamId{2}, /*tag=*/7);
  allocator.free(block);
  std::vector<Action> actions;
  for (const TraceEvent& event : trace) {
    actions.push_back(event.action);
    EXPECT_EQ(event.stream, StreamId{2});
  }
  EXPECT_EQ(actions, (std::vector{Action::kSegmentAlloc, Action::kAlloc, Action::kFreeRequested,
                                  Action::kFreeCompleted}));
  EXPECT_EQ(trace[1].tag, 7U);
  EXPECT_EQ(trace[1].size, 3 * kMiB);
  EXPECT_EQ(trace[0].size, 20 * kMiB);
}

TEST(CachingAllocatorDeathTest, DoubleFreeIsACallersBug) {
  CachingAllocator allocator = make();
  const BlockHandle block = *allocator.allocate(3 * kMiB);
  allocator.free(block);
  EXPECT_DEATH(allocator.free(block), "not allocated");
}

}  // namespace
}  // namespace oomcast::allocator
