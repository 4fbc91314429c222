// Blocks, segments and the lists of free blocks: the bookkeeping below the rules.
#include <algorithm>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/error.hpp"

namespace oomcast::allocator {

const CachingAllocator::Block& CachingAllocator::at(BlockHandle block) const {
  const auto index = static_cast<std::uint32_t>(block);
  OOMCAST_CHECK(index < blocks_.size() && blocks_[index].state != BlockState::kSpare,
                "block {} is not in use", index);
  return blocks_[index];
}

std::uint32_t CachingAllocator::new_block() {
  if (spare_block_ == kNone) {
    blocks_.emplace_back();
    return static_cast<std::uint32_t>(blocks_.size() - 1);
  }
  const std::uint32_t block = spare_block_;
  spare_block_ = blocks_[block].next;
  return block;
}

void CachingAllocator::drop_block(std::uint32_t block) {
  Block& dropped = blocks_[block];
  if (dropped.uses != kNone) {
    drop_uses(dropped);
  }
  dropped.state = BlockState::kSpare;
  dropped.next = spare_block_;
  spare_block_ = block;
}

std::uint32_t CachingAllocator::new_segment(std::int64_t address, std::int64_t size,
                                            std::int64_t page, std::uint32_t list,
                                            BlockState state) {
  std::uint32_t segment = static_cast<std::uint32_t>(segments_.size());
  if (spare_segments_.empty()) {
    segments_.emplace_back();
  } else {
    segment = spare_segments_.back();
    spare_segments_.pop_back();
  }
  const std::uint32_t block = new_block();
  segments_[segment] = {next_segment_number_++, address, size, page, block, list};
  segments_by_age_.push_back(segment);
  Block& whole = blocks_[block];
  whole = Block{};
  whole.address = address;
  whole.size = size;
  whole.freed_at = searches_;
  whole.segment = segment;
  whole.list = list;
  whole.state = state;
  whole.is_small = lists_[list].is_small;
  whole.is_expandable = page != 0;
  return block;
}

void CachingAllocator::drop_segment(std::uint32_t segment) {
  drop_block(segments_[segment].first);
  spare_segments_.push_back(segment);
  segments_by_age_.erase(std::find(segments_by_age_.begin(), segments_by_age_.end(), segment));
}

// The block keeps its first `size` bytes; the rest becomes a block of the same state, returned. The
// front keeps its index, so that a segment's first block is the same for life.
std::uint32_t CachingAllocator::split_front(std::uint32_t block, std::int64_t size) {
  const std::uint32_t rest = new_block();
  Block& front = blocks_[block];
  Block& back = blocks_[rest];
  back.address = front.address + size;
  back.size = front.size - size;
  back.requested = 0;
  back.freed_at = searches_;
  back.previous = block;
  back.next = front.next;
  back.segment = front.segment;
  back.list = front.list;
  back.tag = 0;
  // In PyTorch the rest is the old object and the front a new one: what is known of the old object
  // goes with the rest.
  back.uses = front.uses;
  front.uses = kNone;
  back.events = 0;
  back.state = front.state;
  back.is_small = front.is_small;
  back.is_expandable = front.is_expandable;
  if (back.next != kNone) {
    blocks_[back.next].previous = rest;
  }
  front.next = rest;
  front.size = size;
  return rest;
}

void CachingAllocator::absorb_next(std::uint32_t block) {
  Block& front = blocks_[block];
  const std::uint32_t gone = front.next;
  front.size += blocks_[gone].size;
  front.next = blocks_[gone].next;
  if (front.next != kNone) {
    blocks_[front.next].previous = block;
  }
  drop_block(gone);
}

std::uint32_t CachingAllocator::list_for(std::uint32_t pool, bool is_small, StreamId stream) {
  auto& lists = pools_[pool].lists[is_small ? 1 : 0];
  // Streams are few; the default one is nearly always the first.
  auto place = lists.begin();
  while (place != lists.end() && place->first < stream) {
    ++place;
  }
  if (place != lists.end() && place->first == stream) {
    return place->second;
  }
  std::uint32_t list = static_cast<std::uint32_t>(lists_.size());
  if (spare_lists_.empty()) {
    lists_.emplace_back();
  } else {
    list = spare_lists_.back();
    spare_lists_.pop_back();
  }
  FreeList& made = lists_[list];
  made.free.clear();
  made.unmapped.clear();
  made.stream = stream;
  made.pool = pool;
  made.is_small = is_small;
  lists.insert(place, {stream, list});
  return list;
}

FreeIndex::Position CachingAllocator::position(std::uint32_t block) const {
  const Block& wanted = blocks_[block];
  return lists_[wanted.list].free.locate(key(wanted.size), block, before());
}

void CachingAllocator::insert_free(std::uint32_t block) {
  Block& inserted = blocks_[block];
  inserted.state = BlockState::kFree;
  inserted.freed_at = searches_;
  lists_[inserted.list].free.insert(key(inserted.size), block, before());
}

void CachingAllocator::remove_free(std::uint32_t block) {
  lists_[blocks_[block].list].free.erase(position(block));
}

void CachingAllocator::insert_unmapped(std::uint32_t block) {
  auto& unmapped = lists_[blocks_[block].list].unmapped;
  const auto place = std::lower_bound(
      unmapped.begin(), unmapped.end(), block,
      [this](auto left, auto right) { return blocks_[left].address < blocks_[right].address; });
  unmapped.insert(place, block);
}

void CachingAllocator::remove_unmapped(std::uint32_t block) {
  auto& unmapped = lists_[blocks_[block].list].unmapped;
  unmapped.erase(std::find(unmapped.begin(), unmapped.end(), block));
}

void CachingAllocator::record(Action action, const Block& block, Bytes size, std::uint32_t handle) {
  trace_.sink->push_back({.action = action,
                          .block = static_cast<BlockHandle>(handle),
                          .tag = block.tag,
                          .stream = lists_[block.list].stream,
                          .pool = pools_[lists_[block.list].pool].id,
                          .address = block.address,
                          .size = size,
                          .segment = segments_[block.segment].number});
}

void CachingAllocator::record_segment(Action action, const Segment& segment, std::int64_t address,
                                      std::int64_t size) {
  if (trace_.sink == nullptr) {
    return;
  }
  TraceEvent event{.action = action,
                   .stream = lists_[segment.list].stream,
                   .pool = pools_[lists_[segment.list].pool].id,
                   .address = address,
                   .size = Bytes{size},
                   .segment = segment.number};
  if (segment.page != 0) {
    event.first_page = (address - segment.address) / segment.page;
    event.pages = size / segment.page;
  }
  trace_.sink->push_back(event);
}

void CachingAllocator::count_reserved(std::uint32_t list, std::int64_t change) {
  stats_.reserved += Bytes{change};
  stats_.reserved_peak = std::max(stats_.reserved_peak, stats_.reserved);
  if (lists_[list].is_small) {
    stats_.small_reserved += Bytes{change};
  }
  pools_[lists_[list].pool].reserved += change;
}

}  // namespace oomcast::allocator
