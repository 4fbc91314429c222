// Allocation from cached memory, and free: the paths that every tensor takes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/error.hpp"

namespace oomcast::allocator {
namespace {

constexpr std::int64_t kMinBlock = 512;
constexpr std::int64_t kSmallSize = std::int64_t{1} << 20;  // largest small request
constexpr std::int64_t kSmallSegment = std::int64_t{2} << 20;
constexpr std::int64_t kMinLargeAlloc = std::int64_t{10}
                                        << 20;  // from here on a segment of its own
constexpr std::int64_t kRoundLarge = std::int64_t{2} << 20;
constexpr std::int64_t kExabyte = std::int64_t{1} << 60;

constexpr std::int64_t round_up(std::int64_t size, std::int64_t power_of_two) {
  return (size + power_of_two - 1) & -power_of_two;
}

}  // namespace

CachingAllocator::CachingAllocator(const DeviceConfig& device, const AllocatorSettings& settings)
    : settings_(settings), device_(device) {
  pools_.emplace_back();
  pools_[0].uses = 1;
  refresh_settings();
  set_memory_fraction(settings.per_process_memory_fraction);
}

void CachingAllocator::refresh_settings() {
  max_split_size_ = settings_.max_split_size ? settings_.max_split_size->count()
                                             : std::numeric_limits<std::int64_t>::max();
  // Sums with sizes below 2^60 must not overflow.
  max_non_split_rounding_ = std::min(settings_.max_non_split_rounding.count(), kExabyte);
  rounds_to_divisions_ = std::any_of(settings_.roundup_power2_divisions.begin(),
                                     settings_.roundup_power2_divisions.end(),
                                     [](std::int64_t divisions) { return divisions > 1; });
  counts_searches_ = limit_.has_value() && settings_.garbage_collection_threshold > 0;
}

void CachingAllocator::set_settings(const AllocatorSettings& settings) {
  settings_ = settings;
  refresh_settings();
}

void CachingAllocator::set_memory_fraction(double fraction) {
  OOMCAST_CHECK(fraction >= 0 && fraction <= 1, "memory fraction {}", fraction);
  limit_.reset();
  if (fraction < 1) {
    // Rounded, as recorded (0.8 of 512 MiB is 429496730 B), where older sources truncate.
    limit_ = std::llround(fraction * static_cast<double>(device_.total().count()));
  }
  refresh_settings();
}

std::optional<Bytes> CachingAllocator::memory_limit() const {
  return limit_ ? std::optional<Bytes>{Bytes{*limit_}} : std::nullopt;
}

void CachingAllocator::reset_peaks() {
  stats_.allocated_peak = stats_.allocated;
  stats_.active_peak = stats_.active;
  stats_.requested_peak = stats_.requested;
  stats_.reserved_peak = stats_.reserved;
}

// runtime.md 1.2: multiples of 512 B, or with divisions set the next of `divisions` equal steps
// between two powers of two.
std::int64_t CachingAllocator::round_size(std::int64_t size) const {
  if (size < kMinBlock) {
    return kMinBlock;
  }
  if (rounds_to_divisions_) {
    constexpr int kFirstInterval = 20;  // log2(1 MiB)
    const int log2 = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size))) - 1;
    const int interval = std::clamp(log2 - kFirstInterval, 0,
                                    static_cast<int>(AllocatorSettings::kRoundupIntervals) - 1);
    const std::int64_t divisions =
        settings_.roundup_power2_divisions[static_cast<std::size_t>(interval)];
    if (divisions > 1 && size > kMinBlock * divisions) {
      const std::int64_t step = (std::int64_t{1} << log2) / divisions;
      return round_up(size, step);
    }
  }
  return round_up(size, kMinBlock);
}

std::int64_t CachingAllocator::segment_size(const Request& request) const {
  if (request.is_small) {
    return kSmallSegment;
  }
  return request.size < kMinLargeAlloc ? settings_.large_segment_size.count()
                                       : round_up(request.size, kRoundLarge);
}

CachingAllocator::Request CachingAllocator::make_request(std::int64_t size, StreamId stream) {
  const std::int64_t rounded = round_size(size);
  const bool is_small = rounded <= kSmallSize;
  const std::uint32_t pool = routes_.empty() ? 0 : target_pool(stream);
  return {size,     rounded,
          stream,   list_for(pool, is_small, stream),
          is_small, settings_.expandable_segments};
}

Allocation CachingAllocator::allocate(Bytes size, StreamId stream, std::uint32_t tag) {
  OOMCAST_CHECK(size >= Bytes{}, "allocation of {} bytes", size.count());
  if (size == Bytes{}) {
    return BlockHandle::kNull;
  }
  if (size.count() >= kExabyte) [[unlikely]] {
    last_oom_ = {};
    last_oom_.kind = OutOfMemory::Kind::kBeyondExabyte;
    last_oom_.requested = size;
    return {};
  }
  if ((complete_events_ != 0 || !deferred_.empty()) && !capturing_) [[unlikely]] {
    poll_events();
  }
  Request request = make_request(size.count(), stream);
  Found found = find_free(request);
  if (found.block == kNone) [[unlikely]] {
    found = find_memory(request);
    if (found.block == kNone) {
      return {};
    }
  }
  return hand_out(request, found, tag);
}

// Best fit, and no second best where the best is refused (runtime.md 1.4).
CachingAllocator::Found CachingAllocator::find_free(const Request& request) {
  const FreeList& list = lists_[request.list];
  if (counts_searches_ && list.pool == 0 && !list.is_small) [[unlikely]] {
    ++searches_;
  }
  if (request.size > kMaxDeviceBytes.count()) [[unlikely]] {
    return {};
  }
  FreeIndex::Position at = list.free.lower_bound(key(request.size));
  if (list.free.at_end(at)) {
    return {};
  }
  if (blocks_[list.free.id(at)].is_expandable) {
    at = choose_expandable(request, at);
    if (list.free.at_end(at)) {
      return {};
    }
  }
  const std::uint32_t block = list.free.id(at);
  const std::int64_t size = blocks_[block].size;
  if (size >= max_split_size_ && request.size < max_split_size_) {
    return {};
  }
  if (request.size >= max_split_size_ && size >= request.size + max_non_split_rounding_) {
    return {};
  }
  return {block, true, at};
}

// Among expandable blocks the one whose segment has the least room to grow, comparing neighbours
// only; with expandable segments off, the first block that is not expandable.
FreeIndex::Position CachingAllocator::choose_expandable(const Request& request,
                                                        FreeIndex::Position at) const {
  const FreeIndex& free = lists_[request.list].free;
  const auto block = [&](FreeIndex::Position place) -> const Block& {
    return blocks_[free.id(place)];
  };
  if (!request.expandable) {
    do {
      at = free.next(at);
    } while (!free.at_end(at) && block(at).is_expandable);
    return at;
  }
  const auto room = [&](const Block& candidate) {
    const bool can_grow =
        candidate.next != kNone && blocks_[candidate.next].state == BlockState::kUnmapped;
    return candidate.size + (can_grow ? blocks_[candidate.next].size : 0);
  };
  for (FreeIndex::Position next = free.next(at);
       block(at).is_expandable && !free.at_end(next) && room(block(next)) < room(block(at));
       next = free.next(next)) {
    at = next;
  }
  return at;
}

bool CachingAllocator::should_split(const Block& block, const Request& request) const {
  const std::uint32_t pool = lists_[block.list].pool;
  if (pool != 0 && pools_[pool].no_split) [[unlikely]] {
    return false;
  }
  const std::int64_t rest = block.size - request.size;
  if (request.is_small || request.expandable) {
    return rest >= kMinBlock;
  }
  return request.size < max_split_size_ && rest > kSmallSize;
}

BlockHandle CachingAllocator::hand_out(const Request& request, const Found& found,
                                       std::uint32_t tag) {
  const std::uint32_t id = found.block;
  FreeIndex& free = lists_[request.list].free;
  const bool was_split = blocks_[id].previous != kNone || blocks_[id].next != kNone;
  Bytes change;  // of free bytes in split segments
  std::int64_t change_blocks = 0;
  if (should_split(blocks_[id], request)) {
    const std::uint32_t rest = split_front(id, request.size);
    const std::int64_t rest_size = blocks_[rest].size;
    if (found.is_listed) {
      free.replace(found.at, key(rest_size), rest, before());
    } else {
      insert_free(rest);
    }
    change = was_split ? Bytes{-request.size} : Bytes{rest_size};
    change_blocks = was_split ? 0 : 1;
  } else {
    if (found.is_listed) {
      free.erase(found.at);
    }
    change = was_split ? Bytes{-blocks_[id].size} : Bytes{};
    change_blocks = was_split ? -1 : 0;
  }
  Block& block = blocks_[id];
  block.state = BlockState::kAllocated;
  block.requested = request.requested;
  block.tag = tag;
  const Bytes size{block.size};
  if (!block.is_expandable) {
    stats_.inactive_split += change;
    stats_.inactive_split_blocks += change_blocks;
  }
  stats_.allocations += 1;
  stats_.active_blocks += 1;
  stats_.allocated += size;
  stats_.active += size;
  stats_.requested += Bytes{request.requested};
  stats_.allocated_peak = std::max(stats_.allocated_peak, stats_.allocated);
  stats_.active_peak = std::max(stats_.active_peak, stats_.active);
  stats_.requested_peak = std::max(stats_.requested_peak, stats_.requested);
  if (block.is_small) {
    stats_.small_allocated += size;
    stats_.small_active += size;
    stats_.small_inactive_split += block.is_expandable ? Bytes{} : change;
  }
  if (block.size >= max_split_size_) [[unlikely]] {
    stats_.oversize_allocations += 1;
  }
  if (trace_.sink != nullptr) [[unlikely]] {
    record(Action::kAlloc, block, Bytes{block.requested}, id);
  }
  return static_cast<BlockHandle>(id);
}

void CachingAllocator::free(BlockHandle handle) {
  const auto id = static_cast<std::uint32_t>(handle);
  OOMCAST_CHECK(id < blocks_.size() && blocks_[id].state == BlockState::kAllocated,
                "free of block {}, which is not allocated", id);
  Block& block = blocks_[id];
  stats_.allocations -= 1;
  stats_.allocated -= Bytes{block.size};
  if (block.is_small) {
    stats_.small_allocated -= Bytes{block.size};
  }
  if (block.size >= max_split_size_) [[unlikely]] {
    stats_.oversize_allocations -= 1;
  }
  if (trace_.sink != nullptr) [[unlikely]] {
    record(Action::kFreeRequested, block, Bytes{block.requested}, id);
  }
  if (block.uses != kNone && !uses_[block.uses].recorded.empty()) [[unlikely]] {
    block.state = BlockState::kPending;
    if (capturing_) {
      deferred_.push_back(id);
    } else {
      insert_events(id);
    }
    return;
  }
  complete_free(id);
}

void CachingAllocator::complete_free(std::uint32_t id) {
  const Block& block = blocks_[id];
  if (trace_.sink != nullptr) [[unlikely]] {
    record(Action::kFreeCompleted, block, Bytes{block.requested}, id);
  }
  const Bytes size{block.size};
  const bool is_small = block.is_small;
  stats_.active_blocks -= 1;
  stats_.active -= size;
  stats_.requested -= Bytes{block.requested};
  if (is_small) {
    stats_.small_active -= size;
  }
  const bool is_expandable = block.is_expandable;
  const Merged merged = merge_free(id);
  if (is_expandable) {
    return;
  }
  const Block& result = blocks_[merged.block];
  const bool is_split = result.previous != kNone || result.next != kNone;
  const Bytes change{(is_split ? result.size : 0) - merged.joined_bytes};
  stats_.inactive_split += change;
  stats_.inactive_split_blocks += (is_split ? 1 : 0) - merged.joined_blocks;
  if (is_small) {
    stats_.small_inactive_split += change;
  }
}

// Joins the block with free neighbours and lists the result. The lowest part keeps its index.
CachingAllocator::Merged CachingAllocator::merge_free(std::uint32_t id) {
  Block& block = blocks_[id];
  FreeIndex& free = lists_[block.list].free;
  const std::uint32_t previous = block.previous;
  const std::uint32_t next = block.next;
  const bool joins_previous = previous != kNone && blocks_[previous].state == BlockState::kFree;
  const bool joins_next = next != kNone && blocks_[next].state == BlockState::kFree;
  block.state = BlockState::kFree;
  block.freed_at = searches_;
  if (!joins_previous && !joins_next) {
    free.insert(key(block.size), id, before());
    return {id, 0, 0};
  }
  if (!joins_previous) {
    const std::int64_t joined = blocks_[next].size;
    const FreeIndex::Position at = position(next);
    absorb_next(id);
    free.replace(at, key(block.size), id, before());
    return {id, joined, 1};
  }
  Block& lower = blocks_[previous];
  Merged merged{previous, lower.size, 1};
  if (joins_next) {
    merged.joined_bytes += blocks_[next].size;
    merged.joined_blocks += 1;
    free.erase(position(next));
    absorb_next(id);
  }
  const FreeIndex::Position at = position(previous);
  // In PyTorch it is the freed object that survives.
  std::swap(lower.uses, block.uses);
  lower.freed_at = searches_;
  absorb_next(previous);
  free.replace(at, key(lower.size), previous, before());
  return merged;
}

PoolId CachingAllocator::pool(BlockHandle block) const {
  return pools_[lists_[at(block).list].pool].id;
}

std::pair<std::int64_t, Bytes> CachingAllocator::place(BlockHandle block) const {
  const Block& found = at(block);
  const Segment& segment = segments_[found.segment];
  return {segment.number, Bytes{found.address - segment.address}};
}

}  // namespace oomcast::allocator
