// A million random calls over random settings, streams, pools and captures: blocks never overlap,
// every byte is accounted for, statistics are what the blocks say, free neighbours are merged, and
// a copy goes on as the original.
//
// OOMCAST_PROPERTY_CALLS sets how many calls run (default 1 000 000).
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string>
#include <vector>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/allocator/picture.hpp"
#include "sim/core/error.hpp"
#include "sim/core/random.hpp"
#include "tests/property/cases.hpp"

namespace oomcast::allocator {
namespace {

std::int64_t calls_in_all() {
  const char* text = std::getenv("OOMCAST_PROPERTY_CALLS");
  return text != nullptr ? std::atoll(text) : 1'000'000;  // NOLINT(cert-err34-c): 0 runs nothing
}

std::int64_t current_seed = -1;

// What the caller knows: which handles live, which pools are in which state.
struct Caller {
  std::vector<BlockHandle> live;
  std::vector<PoolId> routed;  // innermost last
  std::vector<PoolId> held;    // one entry a use
  std::vector<StreamId> captured;
  Bytes outside;
  Bytes allocated_seen;
  Bytes active_seen;
  Bytes requested_seen;
};

class World : private RandomCase {
 public:
  explicit World(std::int64_t seed)
      : RandomCase(random_stream(static_cast<std::uint64_t>(seed), "property.allocator")),
        allocator_(device(), settings()),
        used_at_start_(allocator_.device().used()),
        wanted_live_(number(4, 400)) {}

  // One random call.
  void step();
  // What must hold after each call, and what is dear to check.
  void check_totals();
  void check_blocks() const;
  // The next `count` calls on a copy and on the original do the same.
  void check_copy(int count);

 private:
  StreamId stream() { return StreamId{chance(70) ? 0 : number(1, 3)}; }
  PoolId pool() { return PoolId{number(1, 5)}; }
  DeviceConfig device();
  std::string conf();
  AllocatorSettings settings();
  std::int64_t size();

  void allocate();
  void free();
  void change_pools();
  void change_captures();
  void change_limits();

  CachingAllocator allocator_;
  Bytes used_at_start_;
  std::int64_t wanted_live_;
  Caller caller_;
};

DeviceConfig World::device() {
  DeviceConfig config;
  config.total = kMiB * (std::int64_t{64} << number(0, 6));
  config.base_used = 2 * kMiB * number(0, 4);
  config.other_processes = 2 * kMiB * number(0, 4);
  config.addresses = static_cast<AddressPolicy>(number(0, 2));
  return config;
}

std::string World::conf() {
  static const std::vector<std::vector<std::string>> kChoices = {
      {"", "", "max_split_size_mb:20", "max_split_size_mb:40,max_non_split_rounding_mb:24"},
      {"", "", "expandable_segments:True", "expandable_segments:True"},
      {"", "", "garbage_collection_threshold:0.5", "garbage_collection_threshold:0.9"},
      {"", "", "roundup_power2_divisions:4", "roundup_power2_divisions:[1:2,8:8,>:1]"},
      {"", "", "", "large_segment_size_mb:12", "large_segment_size_mb:20"},
      {"", "", "expandable_segments_reserve:0.3", ""},
      {"throw_on_cudamalloc_oom:False", "throw_on_cudamalloc_oom:False",
       "throw_on_cudamalloc_oom:False", "throw_on_cudamalloc_oom:True"},
      {"", "", "per_process_memory_fraction:0.6"}};
  std::string text;
  for (const std::vector<std::string>& choice : kChoices) {
    const std::string& part =
        choice[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(choice.size()) - 1))];
    text += (text.empty() || part.empty() ? "" : ",") + part;
  }
  return text;
}

AllocatorSettings World::settings() {
  Problems problems;
  std::vector<std::string> warnings;
  const AllocatorSettings parsed = parse_allocator_settings(conf(), "conf", problems, warnings);
  problems.raise_if_any();
  return parsed;
}

std::int64_t World::size() {
  // Mostly small against the device, now and then as large as it.
  const auto largest = std::bit_width(
      static_cast<std::uint64_t>(allocator_.device().total().count() / (chance(5) ? 2 : 64)));
  const int log2 = static_cast<int>(number(0, static_cast<std::int64_t>(largest) - 1));
  return number(std::int64_t{1} << log2, std::int64_t{2} << log2) - (chance(50) ? 1 : 0);
}

void World::allocate() {
  const Allocation block = allocator_.allocate(Bytes{size()}, stream());
  if (block && *block != BlockHandle::kNull) {
    caller_.live.push_back(*block);
  }
  if (!block) {
    OOMCAST_CHECK(!allocator_.last_oom().message().empty(), "an OOM without a message");
    for (std::int64_t dropped = number(0, 6); dropped > 0; --dropped) {
      free();
    }
  }
}

void World::free() {
  if (caller_.live.empty()) {
    return;
  }
  const std::int64_t last = static_cast<std::int64_t>(caller_.live.size()) - 1;
  const auto at = static_cast<std::size_t>(chance(60) ? last : number(0, last));
  allocator_.free(caller_.live[at]);
  caller_.live[at] = caller_.live.back();
  caller_.live.pop_back();
}

void World::change_pools() {
  const PoolId id = pool();
  const bool usable = !allocator_.exists(id) || allocator_.has_uses(id);
  switch (number(0, 5)) {
    case 0:
      if (usable && !allocator_.is_routed(id)) {
        allocator_.begin_pool(id, chance(50) ? std::nullopt : std::optional{stream()});
        caller_.routed.push_back(id);
        caller_.held.push_back(id);
      }
      break;
    case 1:
      if (!caller_.routed.empty()) {
        allocator_.end_pool(caller_.routed.back());
        caller_.routed.pop_back();
      }
      break;
    case 2:
      if (usable) {
        allocator_.create_pool(id);
        caller_.held.push_back(id);
      }
      break;
    case 3:
      while (!caller_.held.empty() && !allocator_.is_routed(caller_.held.back()) && chance(80)) {
        allocator_.release_pool(caller_.held.back());
        caller_.held.pop_back();
      }
      break;
    case 4:
      allocator_.set_use_on_oom(id, chance(50));
      break;
    default:
      allocator_.set_no_split(id, chance(30));
      break;
  }
}

void World::change_captures() {
  const StreamId id{number(1, 3)};
  if (!caller_.captured.empty() && chance(60)) {
    allocator_.end_capture(caller_.captured.back());
    caller_.captured.pop_back();
  } else if (!allocator_.is_capturing(id)) {
    allocator_.begin_capture(id);
    caller_.captured.push_back(id);
  } else {
    allocator_.set_current_stream(stream());
  }
}

void World::change_limits() {
  switch (number(0, 4)) {
    case 0:
      allocator_.set_memory_fraction(static_cast<double>(number(2, 10)) / 10);
      break;
    case 1: {
      AllocatorSettings changed = allocator_.settings();
      Problems problems;
      std::vector<std::string> warnings;
      apply_allocator_conf(conf(), "conf", changed, problems, warnings);
      // Blocks that were oversize by another measure would make the current counts negative.
      changed.max_split_size = allocator_.settings().max_split_size;
      allocator_.set_settings(changed);
      break;
    }
    case 2: {
      const Bytes taken = 2 * kMiB * number(1, 8);
      caller_.outside += allocator_.device().take_outside(taken) ? taken : Bytes{};
      break;
    }
    case 3:
      allocator_.device().return_outside(caller_.outside);
      caller_.outside = Bytes{};
      break;
    default:
      allocator_.reset_peaks();
      caller_.allocated_seen = caller_.active_seen = caller_.requested_seen = Bytes{};
      break;
  }
}

void World::step() {
  const std::int64_t kind = number(1, 1000);
  if (kind <= 900) {
    const bool wants_more = static_cast<std::int64_t>(caller_.live.size()) < wanted_live_;
    chance(wants_more ? 60 : 42) ? allocate() : free();
  } else if (kind <= 930) {
    if (!caller_.live.empty()) {
      allocator_.record_stream(caller_.live.back(), stream());
    }
  } else if (kind <= 955) {
    allocator_.complete_events(stream(), number(0, 3));
  } else if (kind <= 960) {
    chance(50) ? allocator_.empty_cache() : allocator_.empty_cache(pool());
  } else if (kind <= 980) {
    change_pools();
  } else if (kind <= 990) {
    change_captures();
  } else {
    change_limits();
  }
}

void World::check_totals() {
  const AllocatorStats& stats = allocator_.stats();
  caller_.allocated_seen = std::max(caller_.allocated_seen, stats.allocated);
  caller_.active_seen = std::max(caller_.active_seen, stats.active);
  caller_.requested_seen = std::max(caller_.requested_seen, stats.requested);
  OOMCAST_CHECK(stats.reserved >= stats.active && stats.active >= stats.allocated &&
                    stats.active >= stats.requested && stats.allocated >= Bytes{},
                "reserved {}, active {}, allocated {}", stats.reserved.count(),
                stats.active.count(), stats.allocated.count());
  OOMCAST_CHECK(stats.allocations == static_cast<std::int64_t>(caller_.live.size()),
                "{} allocations, {} live", stats.allocations, caller_.live.size());
  OOMCAST_CHECK(allocator_.device().free() >= Bytes{}, "more in use than there is");
  // Within a call these only grow at its end, so each peak was seen.
  OOMCAST_CHECK(
      stats.allocated_peak == caller_.allocated_seen && stats.active_peak == caller_.active_seen &&
          stats.requested_peak == caller_.requested_seen && stats.reserved_peak >= stats.reserved,
      "a peak was never seen");
}

// The statistics as the blocks themselves give them.
struct Recount {
  AllocatorStats stats;
  Bytes driver;  // of segments and pages, in the driver's units
};

void recount(const SegmentLayout& segment, Recount& count) {
  AllocatorStats& stats = count.stats;
  const bool is_expandable = segment.page > Bytes{};
  const bool is_split = segment.blocks.size() > 1;
  Bytes mapped;
  Bytes active;
  Bytes allocated;
  Bytes split;
  for (const BlockLayout& block : segment.blocks) {
    const bool is_active = block.use == BlockUse::kAllocated || block.use == BlockUse::kPendingFree;
    mapped += block.use == BlockUse::kUnmapped ? Bytes{} : block.size;
    active += is_active ? block.size : Bytes{};
    allocated += block.use == BlockUse::kAllocated ? block.size : Bytes{};
    stats.requested += block.requested;
    stats.active_blocks += is_active ? 1 : 0;
    stats.allocations += block.use == BlockUse::kAllocated ? 1 : 0;
    if (block.use == BlockUse::kFree && is_split && !is_expandable) {
      split += block.size;
      stats.inactive_split_blocks += 1;
    }
  }
  stats.reserved += mapped;
  stats.active += active;
  stats.allocated += allocated;
  stats.inactive_split += split;
  stats.segments += is_expandable ? 0 : 1;
  if (segment.is_small) {
    stats.small_reserved += mapped;
    stats.small_active += active;
    stats.small_allocated += allocated;
    stats.small_inactive_split += split;
  }
  count.driver += is_expandable ? align_up(segment.page, kDriverUnit) * (mapped / segment.page)
                                : align_up(segment.size, kDriverUnit);
}

void World::check_blocks() const {
  Recount count;
  std::int64_t end = 0;
  for (const SegmentLayout& segment : allocator_.layout()) {
    OOMCAST_CHECK(segment.address >= end, "segment {} overlaps the one before", segment.number);
    end = segment.address + segment.size.count();
    Bytes tiled;
    const BlockLayout* previous = nullptr;
    for (const BlockLayout& block : segment.blocks) {
      tiled += block.size;
      OOMCAST_CHECK(block.size > Bytes{} && block.requested <= block.size, "block of {} bytes",
                    block.size.count());
      const bool could_merge = previous != nullptr && previous->use == block.use &&
                               (block.use == BlockUse::kFree || block.use == BlockUse::kUnmapped);
      OOMCAST_CHECK(!could_merge, "free neighbours in segment {} are not merged\n{}",
                    segment.number, draw_address_space(allocator_, 96));
      previous = &block;
    }
    OOMCAST_CHECK(tiled == segment.size, "segment {} is not tiled", segment.number);
    recount(segment, count);
  }
  AllocatorStats expected = count.stats;
  const AllocatorStats& stats = allocator_.stats();
  // Histories cannot be seen in blocks.
  expected.allocated_peak = stats.allocated_peak;
  expected.active_peak = stats.active_peak;
  expected.requested_peak = stats.requested_peak;
  expected.reserved_peak = stats.reserved_peak;
  expected.alloc_retries = stats.alloc_retries;
  expected.ooms = stats.ooms;
  expected.sync_all_streams = stats.sync_all_streams;
  expected.device_allocs = stats.device_allocs;
  expected.device_frees = stats.device_frees;
  expected.oom_rejections = stats.oom_rejections;
  expected.oversize_allocations = stats.oversize_allocations;
  expected.oversize_segments = stats.oversize_segments;
  OOMCAST_CHECK(expected == stats, "statistics are not what the blocks say\n{}",
                draw_address_space(allocator_, 96));
  OOMCAST_CHECK(stats.oversize_allocations >= 0 && stats.oversize_segments >= 0,
                "negative counts of oversize blocks");
  const Bytes used = allocator_.device().used();
  OOMCAST_CHECK(used == used_at_start_ + count.driver + caller_.outside,
                "the driver has {} B in use, segments take {} B and others {} B", used.count(),
                count.driver.count(), (used_at_start_ + caller_.outside).count());
  for (const SegmentSnapshot& run : allocator_.snapshot()) {
    OOMCAST_CHECK(run.allocated <= run.active && run.active <= run.size, "run of segment {}",
                  run.number);
  }
  allocator_.verify();
}

void World::check_copy(int count) {
  World copy = *this;
  Trace trace;
  Trace copy_trace;
  allocator_.trace_to(&trace);
  copy.allocator_.trace_to(&copy_trace);
  OOMCAST_CHECK(copy.allocator_.state_digest() == allocator_.state_digest(),
                "a copy has another digest");
  for (int i = 0; i < count; ++i) {
    step();
    check_totals();
    copy.step();
    OOMCAST_CHECK(trace.size() == copy_trace.size(), "a copy went another way");
  }
  allocator_.trace_to(nullptr);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    OOMCAST_CHECK(trace[i].action == copy_trace[i].action &&
                      trace[i].address == copy_trace[i].address &&
                      trace[i].block == copy_trace[i].block && trace[i].size == copy_trace[i].size,
                  "event {} of a copy differs", i);
  }
  OOMCAST_CHECK(copy.allocator_.stats() == allocator_.stats() &&
                    copy.allocator_.state_digest() == allocator_.state_digest(),
                "a copy ends in another state");
}

TEST(AllocatorProperty, BlocksAndStatisticsHoldTogetherOverRandomCalls) {
  set_check_hook([] { fmt::print(stderr, "property case: seed {}\n", current_seed); });
  constexpr std::int64_t kCallsACase = 4000;
  constexpr int kBetweenChecks = 32;
  constexpr int kCopied = 100;
  for (std::int64_t calls = 0; calls < calls_in_all(); calls += kCallsACase) {
    current_seed = calls / kCallsACase;
    World world(current_seed);
    for (std::int64_t i = 0; i < kCallsACase; ++i) {
      world.step();
      world.check_totals();
      if (i % kBetweenChecks == 0) {
        world.check_blocks();
      }
      if (i % (kCallsACase / 4) == kCallsACase / 8) {
        world.check_copy(kCopied);
      }
    }
    world.check_blocks();
  }
  set_check_hook(nullptr);
}

// Fits at N, not at N + 1 (a driver unit, as memory comes in these).
TEST(AllocatorProperty, TheLastUnitDecides) {
  for (std::int64_t seed = 0; seed < 200; ++seed) {
    RandomStream random = random_stream(static_cast<std::uint64_t>(seed), "property.tightness");
    const Bytes taken = kDriverUnit * uniform_int(random, 0, 100);
    const Bytes total = taken + kDriverUnit * uniform_int(random, 6, 200);
    CachingAllocator allocator({.total = total, .base_used = taken}, AllocatorSettings{});
    CachingAllocator other = allocator;
    EXPECT_TRUE(allocator.allocate(total - taken));
    EXPECT_EQ(allocator.device().free(), Bytes{});
    EXPECT_FALSE(other.allocate(total - taken + Bytes{1}));
    EXPECT_EQ(other.last_oom().short_by(), kDriverUnit);
  }
}

}  // namespace
}  // namespace oomcast::allocator
