// The allocator's state as seen from outside: layout, snapshot, digest, and a check of its own
// lists.
#include <algorithm>
#include <bit>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"

namespace oomcast::allocator {

std::vector<SegmentLayout> CachingAllocator::layout() const {
  std::vector<SegmentLayout> segments;
  for (const std::uint32_t index : segments_by_age_) {
    const Segment& segment = segments_[index];
    const FreeList& list = lists_[segment.list];
    SegmentLayout& view = segments.emplace_back();
    view.number = segment.number;
    view.address = segment.address;
    view.size = Bytes{segment.size};
    view.page = Bytes{segment.page};
    view.stream = list.stream;
    view.pool = pools_[list.pool].id;
    view.is_small = list.is_small;
    for (std::uint32_t id = segment.first; id != kNone; id = blocks_[id].next) {
      const Block& block = blocks_[id];
      BlockLayout& part = view.blocks.emplace_back();
      part.size = Bytes{block.size};
      switch (block.state) {
        case BlockState::kAllocated:
          part.use = BlockUse::kAllocated;
          part.handle = static_cast<BlockHandle>(id);
          break;
        case BlockState::kPending:
          part.use = BlockUse::kPendingFree;
          break;
        case BlockState::kUnmapped:
          part.use = BlockUse::kUnmapped;
          break;
        case BlockState::kFree:
        case BlockState::kSpare:
          part.use = BlockUse::kFree;
          break;
      }
      if (part.use == BlockUse::kAllocated || part.use == BlockUse::kPendingFree) {
        part.requested = Bytes{block.requested};
        part.tag = block.tag;
      }
    }
  }
  std::sort(segments.begin(), segments.end(),
            [](const SegmentLayout& left, const SegmentLayout& right) {
              return left.address < right.address;
            });
  return segments;
}

std::vector<SegmentSnapshot> CachingAllocator::snapshot() const {
  std::vector<SegmentSnapshot> runs;
  for (SegmentLayout& segment : layout()) {
    Bytes offset;
    bool in_run = false;
    for (const BlockLayout& block : segment.blocks) {
      const bool is_mapped = block.use != BlockUse::kUnmapped;
      if (is_mapped && !in_run) {
        SegmentSnapshot& run = runs.emplace_back();
        run.number = segment.number;
        run.offset = offset;
        run.address = segment.address + offset.count();
        run.stream = segment.stream;
        run.pool = segment.pool;
        run.is_small = segment.is_small;
        run.is_expandable = segment.page > Bytes{};
      }
      if (is_mapped) {
        SegmentSnapshot& run = runs.back();
        run.size += block.size;
        run.allocated += block.use == BlockUse::kAllocated ? block.size : Bytes{};
        run.active += block.use == BlockUse::kFree ? Bytes{} : block.size;
        run.requested += block.requested;
        run.blocks.push_back(block);
      }
      in_run = is_mapped;
      offset += block.size;
    }
  }
  return runs;
}

void CachingAllocator::digest_segments(Digest& digest) const {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15ULL;  // spreads what is added over the word
  const auto add = [&](auto value) { digest.add_word(static_cast<std::uint64_t>(value)); };
  // In the order of age, so that ages themselves need not enter.
  for (const std::uint32_t index : segments_by_age_) {
    const Segment& segment = segments_[index];
    const FreeList& list = lists_[segment.list];
    add(segment.address + (list.is_small ? 1 : 0));
    add(segment.page + static_cast<std::int64_t>(list.stream));
    if (list.pool != 0) {
      add(pools_[list.pool].id);
    }
    for (std::uint32_t id = segment.first; id != kNone; id = blocks_[id].next) {
      const Block& block = blocks_[id];
      add((block.size << 3) + static_cast<std::int64_t>(block.state));
      if (block.state == BlockState::kAllocated || block.state == BlockState::kPending) {
        add(static_cast<std::uint64_t>(block.requested) * kOdd + id);
      } else if (counts_searches_) {
        add(searches_ - block.freed_at);
      }
      if (block.uses != kNone) {
        for (const StreamId stream : uses_[block.uses].recorded) {
          add(stream);
        }
        add(-1);
        for (const StreamId stream : uses_[block.uses].captured) {
          add(stream);
        }
      }
    }
  }
}

void CachingAllocator::digest_pools_and_streams(Digest& digest) const {
  const auto add = [&](auto value) { digest.add_word(static_cast<std::uint64_t>(value)); };
  for (const auto& [id, pool] : private_pools_) {
    add(id);
    add(pools_[pool].uses);
  }
  for (const Route& route : routes_) {
    add(route.pool);
    add(route.stream ? static_cast<std::int64_t>(*route.stream) : -1);
  }
  for (const PoolId id : use_on_oom_) {
    add(id);
  }
  add(-1);
  for (const PoolId id : no_split_) {
    add(id);
  }
  add(current_stream_);
  for (const StreamId stream : captures_) {
    add(stream);
  }
  for (const StreamEvents& each : events_) {
    add(each.stream);
    add(each.complete);
    for (const std::uint32_t block : each.blocks) {
      add(block);
    }
  }
  for (const std::uint32_t block : deferred_) {
    add(block);
  }
}

std::uint64_t CachingAllocator::state_digest() const {
  Digest digest;
  digest_segments(digest);
  digest_pools_and_streams(digest);
  const auto add = [&](auto value) { digest.add_word(static_cast<std::uint64_t>(value)); };
  for (const std::int64_t divisions : settings_.roundup_power2_divisions) {
    add(divisions);
  }
  add(std::bit_cast<std::uint64_t>(settings_.garbage_collection_threshold));
  if (settings_.expandable_segments_reserve) {
    add(settings_.expandable_segments_reserve->is_fraction ? 1 : 0);
    add(std::bit_cast<std::uint64_t>(settings_.expandable_segments_reserve->value));
  }
  add(settings_.large_segment_size.count());
  add(max_split_size_);
  add(max_non_split_rounding_);
  add(settings_.expandable_segments ? 1 : 0);
  add(settings_.throw_on_cudamalloc_oom ? 1 : 0);
  add(limit_.value_or(-1));
  add(device_.state_digest());
  return digest.value();
}

void CachingAllocator::verify() const {
  std::size_t listed_free = 0;
  std::size_t listed_unmapped = 0;
  for (const FreeList& list : lists_) {
    std::uint32_t last = kNone;
    for (auto at = list.free.begin(); !list.free.at_end(at); at = list.free.next(at)) {
      const std::uint32_t id = list.free.id(at);
      const Block& block = blocks_[id];
      OOMCAST_CHECK(block.state == BlockState::kFree && &lists_[block.list] == &list,
                    "block {} is listed as free", id);
      OOMCAST_CHECK(position(id) == at, "block {} is not where a search expects it", id);
      OOMCAST_CHECK(last == kNone || blocks_[last].size < block.size ||
                        (blocks_[last].size == block.size && before()(last, id)),
                    "block {} stands behind block {}", id, last);
      last = id;
      ++listed_free;
    }
    listed_unmapped += list.unmapped.size();
  }
  std::size_t free = 0;
  std::size_t unmapped = 0;
  for (const Block& block : blocks_) {
    free += block.state == BlockState::kFree ? 1 : 0;
    unmapped += block.state == BlockState::kUnmapped ? 1 : 0;
  }
  OOMCAST_CHECK(free == listed_free && unmapped == listed_unmapped,
                "{} free and {} unmapped blocks, {} and {} listed", free, unmapped, listed_free,
                listed_unmapped);
  for (const std::uint32_t index : segments_by_age_) {
    const Segment& segment = segments_[index];
    std::int64_t end = segment.address;
    std::uint32_t previous = kNone;
    for (std::uint32_t id = segment.first; id != kNone; id = blocks_[id].next) {
      OOMCAST_CHECK(blocks_[id].address == end && blocks_[id].previous == previous &&
                        blocks_[id].segment == index && blocks_[id].list == segment.list,
                    "block {} does not follow block {}", id, previous);
      end += blocks_[id].size;
      previous = id;
    }
    OOMCAST_CHECK(end == segment.address + segment.size, "segment {} is not tiled", segment.number);
  }
}

}  // namespace oomcast::allocator
