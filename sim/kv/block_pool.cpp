#include "sim/kv/block_pool.hpp"

#include <algorithm>
#include <bit>

#include "sim/core/error.hpp"

namespace oomcast::kv {

BlockPool::BlockPool(std::int64_t num_blocks, bool unhashed_first)
    : total_(num_blocks - 1),
      unhashed_first_(unhashed_first),
      free_(num_blocks - 1),
      blocks_(static_cast<std::size_t>(num_blocks)),
      entries_(static_cast<std::size_t>(num_blocks)),
      ring_(std::bit_ceil(2 * static_cast<std::size_t>(num_blocks)), kNullBlock),
      mask_(static_cast<std::uint32_t>(ring_.size() - 1)) {
  for (BlockId block = 0; block < num_blocks; ++block) {
    entry(block).block = block;
    if (block != kNullBlock) {
      push_back(block);
    }
  }
}

void BlockPool::take(std::int64_t count, std::vector<BlockId>& table) {
  std::int64_t unhashed = 0;
  const std::size_t end = table.size() + static_cast<std::size_t>(count);
  table.reserve(end);
  while (table.size() < end) {
    const BlockId block = ring_[head_++ & mask_];
    if (block == kNullBlock) {
      continue;
    }
    table.push_back(block);
    Block& taken = at(block);
    taken.references = 1;
    if (taken.hash == Hash::kIndexed) {
      forget(block);
      ++unhashed;
      ++evictions_;
    } else if (taken.hash == Hash::kPrivate) {
      taken.hash = Hash::kNone;
      ++unhashed;
    }
  }
  cached_free_ -= unhashed;
  free_ -= count;
}

void BlockPool::Release::owned(const std::vector<BlockId>& table, std::int64_t first,
                               std::int64_t hashed) {
  const auto end = static_cast<std::int64_t>(table.size());
  const std::int64_t plain = std::clamp(hashed, first, end);
  for (std::int64_t i = end - 1; i >= first; --i) {
    const BlockId block = table[static_cast<std::size_t>(i)];
    Block& freed = pool_.at(block);
    freed.references = 0;
    freed.hash = i < plain ? Hash::kPrivate : Hash::kNone;
    if (i >= plain && pool_.unhashed_first_) {
      pool_.front_run_.push_back(block);
    } else {
      pool_.push_back(block);
    }
  }
  pool_.free_ += end - first;
  pool_.cached_free_ += plain - first;
}

void BlockPool::push_front_run() {
  for (auto block = front_run_.rbegin(); block != front_run_.rend(); ++block) {
    if (tail_ - head_ > mask_) {
      compact();
    }
    at(*block).place = --head_ & mask_;
    ring_[head_ & mask_] = *block;
  }
  front_run_.clear();
}

// At most half of the ring's places hold blocks, so this pays for itself.
void BlockPool::compact() {
  const std::vector<BlockId> list = free_list();
  head_ = 0;
  tail_ = 0;
  for (const BlockId block : list) {
    at(block).place = tail_;
    ring_[tail_++] = block;
  }
}

std::vector<BlockId> BlockPool::free_list() const {
  std::vector<BlockId> list;
  list.reserve(static_cast<std::size_t>(free_));
  for (std::uint32_t i = head_; i != tail_; ++i) {
    if (ring_[i & mask_] != kNullBlock) {
      list.push_back(ring_[i & mask_]);
    }
  }
  return list;
}

std::int64_t BlockPool::plain_front(std::int64_t most) const {
  std::int64_t count = 0;
  for (std::uint32_t i = head_; i != tail_ && count < most; ++i) {
    const BlockId block = ring_[i & mask_];
    if (block != kNullBlock) {
      if (hashed(block)) {
        break;
      }
      ++count;
    }
  }
  return count;
}

std::int32_t BlockPool::new_entry_of(BlockId block) {
  if (at(block).hash == Hash::kNone) {
    return block;
  }
  std::int32_t index = 0;
  if (spare_entries_.empty()) {
    index = static_cast<std::int32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    index = spare_entries_.back();
    spare_entries_.pop_back();
  }
  entry(index).block = block;
  entry(index).next_of_block = entry(block).next_of_block;
  entry(block).next_of_block = index;
  return index;
}

void BlockPool::insert(BlockKey key, BlockId block, std::int64_t tokens) {
  if (has_key(block, key)) {
    return;
  }
  OOMCAST_CHECK(at(block).hash != Hash::kPrivate, "block {} has a private hash", block);
  ++insertions_;
  const std::int32_t index = new_entry_of(block);
  at(block).hash = Hash::kIndexed;
  entry(index).key = key;
  entry(index).tokens = tokens;
  entry(index).next_same_key = -1;
  entry(index).last_same_key = index;
  const auto [place, fresh] = index_.try_emplace(key, index);
  if (!fresh) {
    Entry& first = entry(place->second);
    entry(first.last_same_key).next_same_key = index;
    first.last_same_key = index;
  }
}

BlockId BlockPool::find(BlockKey key) const {
  const auto place = index_.find(key);
  return place == index_.end() ? kNullBlock : entry(place->second).block;
}

void BlockPool::unlink_entry(std::int32_t index) {
  const auto place = index_.find(entry(index).key);
  OOMCAST_CHECK(place != index_.end(), "block {} is hashed but not indexed", entry(index).block);
  const std::int32_t first = place->second;
  const std::int32_t next = entry(index).next_same_key;
  if (first == index) {
    if (next < 0) {
      index_.erase(place);
    } else {
      entry(next).last_same_key = entry(index).last_same_key;
      place.value() = next;
    }
    return;
  }
  std::int32_t before = first;
  while (entry(before).next_same_key != index) {
    before = entry(before).next_same_key;
  }
  entry(before).next_same_key = next;
  if (entry(first).last_same_key == index) {
    entry(first).last_same_key = before;
  }
}

void BlockPool::forget(BlockId block) {
  if (at(block).hash == Hash::kIndexed) {
    unlink_entry(block);
    for (std::int32_t further = entry(block).next_of_block; further >= 0;) {
      const std::int32_t next = entry(further).next_of_block;
      unlink_entry(further);
      spare_entries_.push_back(further);
      further = next;
    }
    entry(block).next_of_block = -1;
  }
  at(block).hash = Hash::kNone;
}

void BlockPool::move_keys(BlockId from, BlockId to) {
  std::vector<Entry> moved;
  if (at(from).hash == Hash::kIndexed) {
    for (std::int32_t index = from; index >= 0; index = entry(index).next_of_block) {
      moved.push_back(entry(index));
    }
  }
  forget(from);
  for (const Entry& old : moved) {
    insert(old.key, to, old.tokens);
  }
}

bool BlockPool::has_key(BlockId block, BlockKey key) const {
  if (at(block).hash != Hash::kIndexed) {
    return false;
  }
  for (std::int32_t index = block; index >= 0; index = entry(index).next_of_block) {
    if (entry(index).key == key) {
      return true;
    }
  }
  return false;
}

BlockKey BlockPool::first_key(BlockId block) const {
  return at(block).hash == Hash::kIndexed ? entry(block).key : 0;
}

std::int64_t BlockPool::first_key_tokens(BlockId block) const {
  return at(block).hash == Hash::kIndexed ? entry(block).tokens : 0;
}

void BlockPool::check() const {
  std::int64_t listed_cached = 0;
  std::vector<bool> seen(blocks_.size(), false);
  const std::vector<BlockId> list = free_list();
  for (const BlockId block : list) {
    OOMCAST_CHECK(at(block).references == 0, "block {} is free with {} references", block,
                  at(block).references);
    OOMCAST_CHECK(!seen[static_cast<std::size_t>(block)], "block {} is listed twice", block);
    seen[static_cast<std::size_t>(block)] = true;
    listed_cached += hashed(block) ? 1 : 0;
  }
  OOMCAST_CHECK(static_cast<std::int64_t>(list.size()) == free_,
                "{} blocks listed free, {} counted", list.size(), free_);
  OOMCAST_CHECK(listed_cached == cached_free_, "{} cached blocks listed, {} counted", listed_cached,
                cached_free_);
  std::int64_t unreferenced = 0;
  std::size_t indexed = 0;
  for (BlockId block = 1; block <= total_; ++block) {
    unreferenced += at(block).references == 0 ? 1 : 0;
    if (at(block).hash == Hash::kIndexed) {
      for (std::int32_t index = block; index >= 0; index = entry(index).next_of_block) {
        ++indexed;
        OOMCAST_CHECK(find(entry(index).key) != kNullBlock, "block {} is hashed but not indexed",
                      block);
      }
    }
  }
  OOMCAST_CHECK(unreferenced == free_, "{} blocks have no reference, {} are free", unreferenced,
                free_);
  std::size_t chained = 0;
  // Order does not reach the result: this only counts.
  for (const auto& [key, first] : index_) {
    for (std::int32_t index = first; index >= 0; index = entry(index).next_same_key) {
      ++chained;
    }
  }
  OOMCAST_CHECK(chained == indexed, "{} index entries, {} hashed blocks", chained, indexed);
}

}  // namespace oomcast::kv
