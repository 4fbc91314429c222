// The pool of KV blocks: reference counts, the free list in eviction order, and the prefix index
// from block hash to block.
//
// Rules of vLLM's V1 block pool (v1/core/block_pool.py):
//   - Block 0 is the null block: never handed out, stands for "no block here" in tables.
//   - The free list starts as 1, 2, ..; blocks are taken from its front. A block that is taken
//   loses
//     its hashes, one that is hit leaves the list from wherever it stands.
//   - Blocks that are freed with a hash go to the back (least recently used is taken first), those
//     without one to the front where the engine reuses them first.
//
// A block's hash can be known to its owner alone ("private": content that nobody shares). Such a
// block counts as hashed but has no entry in the index.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/kv/prefix_index.hpp"

namespace oomcast::kv {

// A pool block by block, for tests and digests.
struct PoolListing {
  std::vector<BlockId> free_list;  // from front to back
  // By block.
  std::vector<std::int32_t> references;
  std::vector<bool> hashed;
  std::vector<BlockKey> keys;  // the first one; 0: none
};

class BlockPool {
 public:
  // `num_blocks` >= 1, the null block included. `unhashed_first`: blocks freed without a hash are
  // reused first; else all go to the back.
  BlockPool(std::int64_t num_blocks, bool unhashed_first);

  [[nodiscard]] std::int64_t total() const { return total_; }  // null block excluded
  [[nodiscard]] std::int64_t free() const { return free_; }
  [[nodiscard]] std::int64_t cached_free() const { return cached_free_; }  // free and hashed
  [[nodiscard]] std::int32_t references(BlockId block) const { return at(block).references; }
  [[nodiscard]] bool hashed(BlockId block) const { return at(block).hashed(); }

  // The block at the front, now with one reference and no hash. Needs free() > 0.
  BlockId take();
  // The block that take() would give.
  [[nodiscard]] BlockId front();
  // How many of the first `most` free blocks have no hash, up to the first that has one.
  [[nodiscard]] std::int64_t plain_front(std::int64_t most) const;
  // Appends the first `count` blocks to `table`, as `count` times take().
  void take(std::int64_t count, std::vector<BlockId>& table);
  // One reference more; a free block leaves the free list. Not for the null block.
  void touch(BlockId block);
  // One reference more for a block that has some.
  void retain(BlockId block) { ++at(block).references; }

  // Gives up one reference of each of a sequence of blocks, first to be evicted first. Blocks
  // without a hash that become free enter the front as one run in this order, when the sequence
  // ends with the object.
  class Release {
   public:
    explicit Release(BlockPool& pool) : pool_(pool) {}
    ~Release() { pool_.push_front_run(); }
    Release(const Release&) = delete;
    Release& operator=(const Release&) = delete;

    void operator()(BlockId block);  // the null block is passed over
    // The first `count` blocks of a table, from the last of them on.
    void front(const std::vector<BlockId>& table, std::int64_t count);
    // Blocks of a table from its last to its `first`. Each has one reference and no hash in the
    // index; the first `hashed` of the table have a private hash.
    void owned(const std::vector<BlockId>& table, std::int64_t first, std::int64_t hashed);

   private:
    BlockPool& pool_;
  };

  // The prefix index, see prefix_index.hpp. No-op if the block has the key.
  void insert(BlockKey key, BlockId block, std::int64_t tokens,
              const PrefixIndex::Before& before = {});
  // As the index: blocks without keys.
  void insert(std::span<const BlockKey> keys, std::span<const BlockId> blocks, std::int64_t tokens,
              std::int64_t step, const PrefixIndex::Before& before);
  [[nodiscard]] BlockId find(BlockKey key) const { return index_.find(key); }
  [[nodiscard]] BlockId next(PrefixIndex::Cursor& cursor, BlockKey key) const {
    return index_.next(cursor, key);
  }
  void forget(BlockId block) { index_.forget(block); }  // drops all keys of the block
  void move_keys(BlockId from, BlockId to);             // `to` has none
  [[nodiscard]] bool has_key(BlockId block, BlockKey key) const {
    return index_.has_key(block, key);
  }
  // The first key of the block and its tokens; 0 if it has none.
  [[nodiscard]] BlockKey first_key(BlockId block) const { return index_.first_key(block); }
  [[nodiscard]] std::int64_t first_key_tokens(BlockId block) const {
    return index_.first_key_tokens(block);
  }
  // Change whenever a key enters the index, and whenever one leaves it because its block is taken.
  [[nodiscard]] std::uint64_t insertions() const { return insertions_; }
  [[nodiscard]] std::uint64_t evictions() const { return evictions_; }

  // Free list from front to back; for tests and digests.
  [[nodiscard]] std::vector<BlockId> free_list() const;
  [[nodiscard]] PoolListing listing() const;
  // Aborts unless the free list, the counters and the index agree with each other.
  void check() const;

 private:
  [[nodiscard]] const BlockState& at(BlockId block) const { return index_.state(block); }
  BlockState& at(BlockId block) { return index_.state(block); }
  void push_back(BlockId block);
  void push_front_run();
  void compact();

  std::int64_t total_;
  bool unhashed_first_;
  std::int64_t free_ = 0;
  std::int64_t cached_free_ = 0;
  std::uint64_t insertions_ = 0;
  std::uint64_t evictions_ = 0;
  PrefixIndex index_;
  // The free list: ring_[head_ .. tail_), modulo its size, a power of two that is at least twice
  // the number of blocks. Blocks that left from the middle leave a null block behind; when the ring
  // is full of those it is compacted. Both ends are touched in sequence, so that long tables are
  // taken and freed at memory speed.
  std::vector<BlockId> ring_;
  std::uint32_t mask_ = 0;
  std::uint32_t head_ = 0;
  std::uint32_t tail_ = 0;
  std::vector<BlockId> front_run_;  // of the release under way
};

inline BlockId BlockPool::front() {
  while (ring_[head_ & mask_] == kNullBlock) {
    ++head_;
  }
  return ring_[head_ & mask_];
}

inline BlockId BlockPool::take() {
  const BlockId block = front();
  ++head_;
  BlockState& taken = at(block);
  --free_;
  if (taken.hashed()) {
    --cached_free_;
    evictions_ += index_.holds(block) ? 1U : 0U;
    forget(block);
  }
  taken.references = 1;
  return block;
}

inline void BlockPool::touch(BlockId block) {
  BlockState& touched = at(block);
  if (touched.references++ == 0) {
    ring_[touched.place] = kNullBlock;
    --free_;
    cached_free_ -= touched.hashed() ? 1 : 0;
  }
}

inline void BlockPool::push_back(BlockId block) {
  if (tail_ - head_ > mask_) {
    compact();
  }
  at(block).place = tail_ & mask_;
  ring_[tail_++ & mask_] = block;
}

inline void BlockPool::Release::operator()(BlockId block) {
  if (block == kNullBlock || --pool_.at(block).references > 0) {
    return;
  }
  ++pool_.free_;
  const bool hashed = pool_.at(block).hashed();
  pool_.cached_free_ += hashed ? 1 : 0;
  if (hashed || !pool_.unhashed_first_) {
    pool_.push_back(block);
  } else {
    pool_.front_run_.push_back(block);
  }
}

}  // namespace oomcast::kv
