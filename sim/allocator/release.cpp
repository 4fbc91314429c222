// Memory back to the driver: emptying the cache, oversize blocks, garbage collection (runtime.md
// 1.6; allocator.md 4, 7, 16).
#include <algorithm>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/error.hpp"

namespace oomcast::allocator {

void CachingAllocator::empty_cache() { release_cached(); }

void CachingAllocator::empty_cache(PoolId id) {
  const std::optional<std::uint32_t> pool = find_pool(id);
  if (!pool || pools_[*pool].uses > 0) {
    return;
  }
  if (!capturing_) {
    wait_for_events(*pool);
  }
  release_private(*pool);
}

void CachingAllocator::release_cached() {
  constexpr std::uint32_t kDefaultPool = 0;
  if (!capturing_) {
    wait_for_events(std::nullopt);
    release_half(kDefaultPool, /*is_small=*/false);
    release_half(kDefaultPool, /*is_small=*/true);
  }
  // A copy, as empty pools are deleted on the way.
  const auto pools = private_pools_;
  for (const auto& [id, pool] : pools) {
    if (pools_[pool].uses == 0) {
      release_private(pool);
    }
  }
}

void CachingAllocator::release_private(std::uint32_t pool) {
  release_half(pool, /*is_small=*/true);
  release_half(pool, /*is_small=*/false);
  if (pools_[pool].reserved == 0 && !is_routed(pools_[pool].id)) {
    delete_pool(pool);
  }
}

// Frees every segment that is one free block, then unmaps the whole pages of free expandable ones.
void CachingAllocator::release_half(std::uint32_t pool, bool is_small) {
  std::vector<std::uint32_t> whole;
  std::vector<std::uint32_t> expandable;
  for (const auto& [stream, list] : pools_[pool].lists[is_small ? 1 : 0]) {
    const FreeIndex& free = lists_[list].free;
    for (auto at = free.begin(); !free.at_end(at); at = free.next(at)) {
      const Block& block = blocks_[free.id(at)];
      if (block.is_expandable) {
        expandable.push_back(free.id(at));
      } else if (block.previous == kNone && block.next == kNone) {
        whole.push_back(free.id(at));
      }
    }
  }
  for (const std::uint32_t block : whole) {
    release_segment(block);
  }
  for (const std::uint32_t block : expandable) {
    unmap_block(block);
  }
}

void CachingAllocator::release_segment(std::uint32_t id) {
  const Block block = blocks_[id];
  const Segment segment = segments_[block.segment];
  remove_free(id);
  device_.release(segment.address, Bytes{segment.size});
  count_reserved(block.list, -segment.size);
  stats_.segments -= 1;
  stats_.oversize_segments -= segment.size >= max_split_size_ ? 1 : 0;
  stats_.device_frees += 1;
  record_segment(Action::kSegmentFree, segment, segment.address, segment.size);
  drop_segment(block.segment);
}

// Unmaps the whole pages inside a free block; what lies before and behind stays free. The segment
// goes when nothing of it is mapped.
void CachingAllocator::unmap_block(std::uint32_t id) {
  const Segment segment = segments_[blocks_[id].segment];
  const std::int64_t start = blocks_[id].address;
  const std::int64_t end = start + blocks_[id].size;
  const std::int64_t first_page = div_ceil(start - segment.address, segment.page);
  const std::int64_t end_page = (end - segment.address) / segment.page;
  if (first_page >= end_page) {
    return;
  }
  const std::int64_t from = segment.address + first_page * segment.page;
  const std::int64_t size = (end_page - first_page) * segment.page;
  remove_free(id);
  std::uint32_t middle = id;
  if (from > start) {
    middle = split_front(id, from - start);
    insert_free(id);
  }
  if (from + size < end) {
    insert_free(split_front(middle, size));
  }
  blocks_[middle].state = BlockState::kUnmapped;
  const std::uint32_t next = blocks_[middle].next;
  if (next != kNone && blocks_[next].state == BlockState::kUnmapped) {
    remove_unmapped(next);
    absorb_next(middle);
  }
  const std::uint32_t previous = blocks_[middle].previous;
  if (previous != kNone && blocks_[previous].state == BlockState::kUnmapped) {
    absorb_next(previous);
    middle = previous;
  } else {
    insert_unmapped(middle);
  }
  device_.destroy_pages(Bytes{segment.page}, end_page - first_page);
  count_reserved(segment.list, -size);
  stats_.device_frees += 1;
  record_segment(Action::kSegmentUnmap, segment, from, size);
  if (blocks_[middle].size == segment.size) {
    remove_unmapped(middle);
    device_.release_addresses(segment.address, Bytes{segment.size});
    record_segment(Action::kUnreserve, segment, segment.address, segment.size);
    drop_segment(blocks_[middle].segment);
  }
}

// With a finite max_split_size: one cached block of the stream that is large enough, else the
// largest ones down to max_split_size. False if that is not enough, yet what was released stays so.
bool CachingAllocator::release_oversize(const Request& request) {
  if (!settings_.max_split_size) {
    return false;
  }
  const FreeIndex& free = lists_[request.list].free;
  const std::int64_t wanted = std::max(request.size, max_split_size_);
  FreeIndex::Position at =
      wanted > kMaxDeviceBytes.count() ? free.end() : free.lower_bound(key(wanted));
  // PyTorch frees any block that is not expandable; one that is split (max_split_size was lowered
  // meanwhile) would make its cudaFree fail, so only whole segments are taken here.
  const auto can_go = [&](const Block& block) {
    return !block.is_expandable && block.previous == kNone && block.next == kNone;
  };
  if (!free.at_end(at) && can_go(blocks_[free.id(at)])) {
    release_segment(free.id(at));
    return true;
  }
  std::int64_t released = 0;
  while (released < wanted && at != free.begin()) {
    // Releasing a block leaves the positions of smaller ones.
    at = free.previous(at);
    const std::uint32_t id = free.id(at);
    if (blocks_[id].size < max_split_size_) {
      break;
    }
    if (can_go(blocks_[id])) {
      released += blocks_[id].size;
      release_segment(id);
    }
  }
  return released >= wanted;
}

// Frees unsplit blocks of the default large pool that are at least as old as the average, whole
// passes at a time, until the reserved memory is below the threshold (or nothing is left to free).
// Fully mapped expandable segments count for the average though they are not freed.
void CachingAllocator::collect_garbage() {
  const auto threshold = static_cast<std::int64_t>(settings_.garbage_collection_threshold *
                                                   static_cast<double>(*limit_));
  const std::int64_t reserved = stats_.reserved.count();
  if (reserved <= threshold) {
    return;
  }
  std::int64_t total_age = 0;
  std::int64_t freeable = 0;
  std::vector<std::uint32_t> candidates;
  for (const auto& [stream, list] : pools_[0].lists[0]) {
    const FreeIndex& free = lists_[list].free;
    for (auto at = free.begin(); !free.at_end(at); at = free.next(at)) {
      const Block& block = blocks_[free.id(at)];
      if (block.previous == kNone && block.next == kNone) {
        total_age += searches_ - block.freed_at;
        ++freeable;
        if (!block.is_expandable) {
          candidates.push_back(free.id(at));
        }
      }
    }
  }
  std::int64_t reclaimed = 0;
  bool freed = true;
  while (reclaimed < reserved - threshold && freed && freeable > 0) {
    const double average = static_cast<double>(total_age) / static_cast<double>(freeable);
    freed = false;
    std::erase_if(candidates, [&](std::uint32_t id) {
      const std::int64_t age = searches_ - blocks_[id].freed_at;
      if (static_cast<double>(age) < average) {
        return false;
      }
      freed = true;
      reclaimed += blocks_[id].size;
      total_age -= age;
      --freeable;
      release_segment(id);
      return true;
    });
  }
}

}  // namespace oomcast::allocator
