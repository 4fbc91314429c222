// When no cached block serves: new memory from the driver, and what PyTorch tries before it gives
// up (runtime.md 1.3, 1.7; allocator.md 3, 4, 12, 15).
#include <algorithm>
#include <cmath>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/error.hpp"

namespace oomcast::allocator {

CachingAllocator::Found CachingAllocator::find_memory(Request& request) {
  if (counts_searches_) {
    collect_garbage();
  }
  if (rejects_early(request)) {
    stats_.oom_rejections += 1;
    out_of_memory(request, OutOfMemory::Kind::kRejected);
    return {};
  }
  Found found = grow(request, /*is_retry=*/false);
  if (found.block == kNone) {
    found = borrow_on_oom(request);
  }
  if (found.block == kNone && release_oversize(request)) {
    found = grow(request, /*is_retry=*/false);
  }
  if (found.block == kNone && !capturing_) {
    release_cached();
    found = grow(request, /*is_retry=*/true);
  }
  if (found.block == kNone) {
    stats_.ooms += 1;
    out_of_memory(request, OutOfMemory::Kind::kExhausted);
  }
  return found;
}

bool CachingAllocator::rejects_early(const Request& request) const {
  return settings_.throw_on_cudamalloc_oom &&
         stats_.reserved.count() + segment_size(request) > limit_.value_or(device_.total().count());
}

void CachingAllocator::out_of_memory(const Request& request, OutOfMemory::Kind kind) {
  last_oom_ = {};
  last_oom_.kind = kind;
  last_oom_.requested = Bytes{request.requested};
  if (kind == OutOfMemory::Kind::kRejected) {
    return;
  }
  last_oom_.segment = Bytes{segment_size(request)};
  last_oom_.limit = Bytes{limit_.value_or(device_.total().count())};
  last_oom_.has_limit = limit_.has_value();
  last_oom_.device_total = device_.total();
  last_oom_.device_free = device_.free();
  last_oom_.process_used = device_.used_by_process();
  last_oom_.allocated = stats_.allocated;
  last_oom_.reserved = stats_.reserved;
  last_oom_.expandable_segments = settings_.expandable_segments;
  last_oom_.device_index = device_.index();
  for (const auto& [id, pool] : private_pools_) {
    for (const auto& half : pools_[pool].lists) {
      for (const auto& [stream, list] : half) {
        const FreeIndex& free = lists_[list].free;
        for (auto at = free.begin(); !free.at_end(at); at = free.next(at)) {
          last_oom_.free_in_private_pools += Bytes{blocks_[free.id(at)].size};
        }
      }
    }
  }
  if (trace_.sink != nullptr) {
    trace_.sink->push_back({.action = Action::kOom,
                            .stream = request.stream,
                            .address = device_.free().count(),
                            .size = Bytes{request.size}});
  }
}

// Pools marked use_on_oom lend free blocks of theirs to the default pool. They are searched as if
// expandable segments were off, so expandable blocks are never lent.
CachingAllocator::Found CachingAllocator::borrow_on_oom(Request& request) {
  if (lists_[request.list].pool != 0) {
    return {};
  }
  for (const PoolId id : use_on_oom_) {
    if (!has_uses(id)) {
      continue;
    }
    Request lent = request;
    lent.list = list_for(*find_pool(id), request.is_small, request.stream);
    lent.expandable = false;
    const Found found = find_free(lent);
    if (found.block != kNone) {
      request = lent;
      return found;
    }
  }
  return {};
}

CachingAllocator::Found CachingAllocator::grow(const Request& request, bool is_retry) {
  stats_.alloc_retries += is_retry ? 1 : 0;
  const std::int64_t size = segment_size(request);
  if (limit_ && stats_.reserved.count() + size > *limit_) {
    return {};
  }
  if (request.expandable) {
    return grow_expandable(request);
  }
  const std::optional<std::int64_t> address = device_.allocate(Bytes{size});
  if (!address) {
    if (trace_.sink != nullptr) {
      trace_.sink->push_back({.action = Action::kMallocFailed, .size = Bytes{size}});
    }
    return {};
  }
  const std::uint32_t block = new_segment(*address, size, 0, request.list, BlockState::kFree);
  count_reserved(request.list, size);
  stats_.segments += 1;
  stats_.oversize_segments += size >= max_split_size_ ? 1 : 0;
  stats_.device_allocs += 1;
  record_segment(Action::kSegmentAlloc, segments_[blocks_[block].segment], *address, size);
  return {block, false, {}};
}

// Bytes of addresses that an expandable segment with this page size reserves: 9/8 of the device, or
// less by expandable_segments_reserve, in whole pages.
std::int64_t CachingAllocator::address_range(std::int64_t page) const {
  const std::int64_t total = device_.total().count();
  std::int64_t range = total + total / 8;
  if (settings_.expandable_segments_reserve) {
    const SegmentReserve& reserve = *settings_.expandable_segments_reserve;
    const double bytes =
        reserve.value * static_cast<double>(reserve.is_fraction ? total : kGiB.count());
    if (bytes < static_cast<double>(range)) {
      range = static_cast<std::int64_t>(bytes);
    }
  }
  return align_up(range, page);
}

bool CachingAllocator::has_room(std::uint32_t block, std::int64_t size) const {
  std::int64_t room = 0;
  while (room < size && block != kNone &&
         (blocks_[block].state == BlockState::kFree ||
          blocks_[block].state == BlockState::kUnmapped)) {
    room += blocks_[block].size;
    block = blocks_[block].next;
  }
  return room >= size;
}

// The lowest place in an expandable segment of this pool and stream where free and unmapped blocks
// in a row suffice; else a new segment. kNone if not even that is large enough.
std::uint32_t CachingAllocator::find_room(const Request& request) {
  for (const std::uint32_t unmapped : lists_[request.list].unmapped) {
    const std::uint32_t previous = blocks_[unmapped].previous;
    const bool from_previous = previous != kNone && blocks_[previous].state == BlockState::kFree;
    const std::uint32_t candidate = from_previous ? previous : unmapped;
    if (has_room(candidate, request.size)) {
      return candidate;
    }
  }
  const std::int64_t page =
      request.is_small ? kDriverUnit.count() : settings_.large_segment_size.count();
  const std::int64_t range = address_range(page);
  if (range < request.size) {
    return kNone;
  }
  const std::int64_t address = device_.reserve_addresses(Bytes{range});
  const std::uint32_t block =
      new_segment(address, range, page, request.list, BlockState::kUnmapped);
  insert_unmapped(block);
  record_segment(Action::kReserve, segments_[blocks_[block].segment], address, range);
  return block;
}

CachingAllocator::Found CachingAllocator::grow_expandable(const Request& request) {
  std::uint32_t candidate = find_room(request);
  if (candidate == kNone) {
    return {};
  }
  if (blocks_[candidate].state == BlockState::kUnmapped) {
    candidate = map_block(candidate, std::min(blocks_[candidate].size, request.size));
  }
  while (candidate != kNone && blocks_[candidate].size < request.size) {
    // Behind a free block that is too small lies an unmapped one. What is mapped here stays mapped
    // even if a later hole cannot be filled.
    const std::uint32_t hole = blocks_[candidate].next;
    const std::int64_t missing = request.size - blocks_[candidate].size;
    candidate = map_block(hole, std::min(missing, blocks_[hole].size));
  }
  if (candidate == kNone) {
    return {};
  }
  return {candidate, true, position(candidate)};
}

// Maps whole pages over the first `size` bytes of an unmapped block and joins them with free
// neighbours: the resulting free block, or kNone when memory does not suffice for all pages.
std::uint32_t CachingAllocator::map_block(std::uint32_t block, std::int64_t size) {
  const Segment segment = segments_[blocks_[block].segment];
  const std::int64_t pages = div_ceil(size, segment.page);
  const std::int64_t mapped = pages * segment.page;
  if (!device_.create_pages(Bytes{segment.page}, pages)) {
    if (trace_.sink != nullptr) {
      trace_.sink->push_back({.action = Action::kCreateFailed, .size = Bytes{segment.page}});
    }
    return kNone;
  }
  const std::int64_t address = blocks_[block].address;
  remove_unmapped(block);
  if (mapped < blocks_[block].size) {
    insert_unmapped(split_front(block, mapped));
  }
  const std::uint32_t joined = merge_free(block).block;
  count_reserved(segment.list, mapped);
  stats_.device_allocs += 1;
  record_segment(Action::kSegmentMap, segment, address, mapped);
  return joined;
}

}  // namespace oomcast::allocator
