#include "sim/kv/block_pool.hpp"

#include <algorithm>
#include <bit>

#include "sim/core/error.hpp"

namespace oomcast::kv {

BlockPool::BlockPool(std::int64_t num_blocks, bool unhashed_first)
    : total_(num_blocks - 1),
      unhashed_first_(unhashed_first),
      free_(num_blocks - 1),
      index_(num_blocks),
      ring_(std::bit_ceil(2 * static_cast<std::size_t>(num_blocks)), kNullBlock),
      mask_(static_cast<std::uint32_t>(ring_.size() - 1)) {
  for (BlockId block = 0; block < num_blocks; ++block) {
    if (block != kNullBlock) {
      push_back(block);
    }
  }
}

void BlockPool::take(std::int64_t count, std::vector<BlockId>& table) {
  const std::size_t begin = table.size();
  table.resize(begin + static_cast<std::size_t>(count));
  std::int64_t unhashed = 0;
  std::uint64_t evicted = 0;
  std::uint32_t head = head_;
  for (auto taken = table.begin() + static_cast<std::ptrdiff_t>(begin); taken != table.end();) {
    const BlockId block = ring_[head++ & mask_];
    if (block == kNullBlock) {
      continue;
    }
    *taken++ = block;
    BlockState& state = at(block);
    state.references = 1;
    if (state.hashed()) {
      ++unhashed;
      evicted += state.run >= 0 ? 1U : 0U;
      index_.forget(block);
    }
  }
  head_ = head;
  cached_free_ -= unhashed;
  evictions_ += evicted;
  free_ -= count;
}

void BlockPool::Release::front(const std::vector<BlockId>& table, std::int64_t count) {
  for (std::int64_t i = count - 1; i >= 0; --i) {
    (*this)(table[static_cast<std::size_t>(i)]);
  }
}

void BlockPool::Release::owned(const std::vector<BlockId>& table, std::int64_t first,
                               std::int64_t hashed) {
  const auto end = static_cast<std::int64_t>(table.size());
  const std::int64_t plain = std::clamp(hashed, first, end);
  for (std::int64_t i = end - 1; i >= first; --i) {
    const BlockId block = table[static_cast<std::size_t>(i)];
    BlockState& freed = pool_.at(block);
    freed.references = 0;
    freed.run = i < plain ? BlockState::kPrivate : BlockState::kUnhashed;
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

PoolListing BlockPool::listing() const {
  PoolListing listing{free_list(), {}, {}, {}};
  for (BlockId block = 0; block <= total_; ++block) {
    listing.references.push_back(references(block));
    listing.hashed.push_back(hashed(block));
    listing.keys.push_back(first_key(block));
  }
  return listing;
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

void BlockPool::insert(BlockKey key, BlockId block, std::int64_t tokens,
                       const PrefixIndex::Before& before) {
  if (index_.has_key(block, key)) {
    return;
  }
  OOMCAST_CHECK(at(block).run != BlockState::kPrivate, "block {} has a private hash", block);
  ++insertions_;
  index_.insert(key, block, tokens, before);
}

void BlockPool::insert(std::span<const BlockKey> keys, std::span<const BlockId> blocks,
                       std::int64_t tokens, std::int64_t step, const PrefixIndex::Before& before) {
  insertions_ += keys.size();
  index_.insert(keys, blocks, tokens, step, before);
}

void BlockPool::move_keys(BlockId from, BlockId to) { insertions_ += index_.move_keys(from, to); }

void BlockPool::check() const {
  std::int64_t listed_cached = 0;
  std::vector<bool> seen(static_cast<std::size_t>(total_ + 1), false);
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
  for (BlockId block = 1; block <= total_; ++block) {
    unreferenced += at(block).references == 0 ? 1 : 0;
  }
  OOMCAST_CHECK(unreferenced == free_, "{} blocks have no reference, {} are free", unreferenced,
                free_);
  index_.check();
}

}  // namespace oomcast::kv
