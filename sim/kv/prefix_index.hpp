// From prefixes to the blocks that hold their KV.
//
// A key stands for a prefix that ends with a block (block_hash.hpp). Equal keys may sit in several
// blocks; a lookup returns the first one inserted that is left.
//
// Blocks whose keys were inserted one behind the other lie in one run, and only the first key of a
// run is hashed: the others are found by walking on from the block before. What a prompt fills,
// hits or loses at its tail thus costs a step in an array for each block. Runs are cut where
// prefixes part, where a key comes a second time and where a block is lost from the middle, so that
//   - a key of several blocks is the first one of each of their runs,
//   - any other key stands right behind the key of the block before it.
#pragma once

#include <tsl/robin_map.h>

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <span>
#include <vector>

namespace oomcast::kv {

using BlockId = std::int32_t;
using BlockKey = std::uint64_t;  // block hash with its group, see block_hash.hpp

inline constexpr BlockId kNullBlock = 0;

// What a pool keeps of each block: the pool's part and the index's, which are touched together.
struct BlockState {
  static constexpr std::int32_t kUnhashed = -1;
  static constexpr std::int32_t kPrivate = -2;  // hashed, but not in the index

  std::int32_t references = 0;
  std::uint32_t place = 0;  // in the free list, while free
  // Where the block's first key is, if it has one.
  std::int32_t run = kUnhashed;
  std::uint32_t offset = 0;

  [[nodiscard]] bool hashed() const { return run != kUnhashed; }
};

class PrefixIndex {
 public:
  // A block and one of its keys: where a longer prefix goes on. The null block: nowhere known.
  struct Before {
    BlockId block = kNullBlock;
    BlockKey key = 0;
  };
  // Place of a block that was found. Void once the index changes.
  class Cursor {
    friend class PrefixIndex;
    std::int32_t run_ = -1;
    std::size_t offset_ = 0;
  };

  explicit PrefixIndex(std::int64_t num_blocks) : blocks_(static_cast<std::size_t>(num_blocks)) {}

  [[nodiscard]] const BlockState& state(BlockId block) const {
    return blocks_[static_cast<std::size_t>(block)];
  }
  // `run` and `offset` are the index's, but for a hash to be made private.
  BlockState& state(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }

  // `tokens` is the length of the prefix that the key stands for. A key inserted with the block
  // before it is found by next() from that block, one without by find().
  void insert(BlockKey key, BlockId block, std::int64_t tokens, const Before& before);
  // One behind the other, as by single calls: `blocks` without keys, the first prefix of `tokens`
  // tokens, each `step` longer than the one before.
  void insert(std::span<const BlockKey> keys, std::span<const BlockId> blocks, std::int64_t tokens,
              std::int64_t step, Before before);
  [[nodiscard]] BlockId find(BlockKey key) const;  // kNullBlock if absent
  // The block of the next longer prefix behind the cursor, which moves there; from a new cursor the
  // first one. kNullBlock if absent: the cursor stays.
  [[nodiscard]] BlockId next(Cursor& cursor, BlockKey key) const;
  void forget(BlockId block);  // drops all keys of the block
  // `to` has none. Returns how many.
  std::uint64_t move_keys(BlockId from, BlockId to);

  [[nodiscard]] bool holds(BlockId block) const { return state(block).run >= 0; }
  [[nodiscard]] bool has_key(BlockId block, BlockKey key) const {
    return place(block, key).run >= 0;
  }
  // The first key of the block and its tokens; 0 if it has none.
  [[nodiscard]] BlockKey first_key(BlockId block) const;
  [[nodiscard]] std::int64_t first_key_tokens(BlockId block) const;

  // Aborts unless runs, blocks and hashed keys agree.
  void check() const;

 private:
  struct Element {
    BlockKey key = 0;
    BlockId block = kNullBlock;
    std::int32_t tokens = 0;
  };
  struct Run {
    // Long runs are few, runs of one block may be as many as there are blocks.
    boost::container::small_vector<Element, 1> elements;
    std::size_t begin = 0;  // elements before it were cut off
    // Runs with the same first key, in order of insertion.
    std::int32_t next_same = -1;
    std::int32_t last_same = -1;  // of the first one: the last one
    // Of a block with several keys (a state that several prefixes end in): each has a run of its
    // own.
    std::int32_t next_of_block = -1;

    [[nodiscard]] const Element& head() const { return elements[begin]; }
  };
  struct Place {
    std::int32_t run = -1;  // -1: nowhere
    std::uint32_t offset = 0;
  };
  struct Identity {
    std::size_t operator()(BlockKey key) const { return key; }
  };

  [[nodiscard]] Place home(BlockId block) const { return {state(block).run, state(block).offset}; }
  void set_home(BlockId block, std::int32_t run, std::size_t offset) {
    state(block).run = run;
    state(block).offset = static_cast<std::uint32_t>(offset);
  }
  [[nodiscard]] const Run& run(std::int32_t index) const {
    return runs_[static_cast<std::size_t>(index)];
  }
  Run& run(std::int32_t index) { return runs_[static_cast<std::size_t>(index)]; }

  [[nodiscard]] Place place(BlockId block, BlockKey key) const;
  [[nodiscard]] Place behind(const Place& at, BlockKey key) const;
  std::int32_t new_run();
  void link(std::int32_t index);
  [[nodiscard]] std::int32_t before_same(std::int32_t first, std::int32_t index) const;
  void unlink(std::int32_t index);
  void replace(std::int32_t old, std::int32_t with);
  void cut(std::int32_t index, std::size_t at);
  void remove(std::int32_t index, std::size_t offset);
  void forget_any(BlockId block);

  std::vector<BlockState> blocks_;
  std::vector<Run> runs_;
  std::vector<std::int32_t> spare_runs_;
  tsl::robin_map<BlockKey, std::int32_t, Identity>
      heads_;  // first keys; never iterated but to check
};

inline void PrefixIndex::forget(BlockId block) {
  BlockState& at = state(block);
  if (at.run < 0) {
    at.run = BlockState::kUnhashed;
    return;
  }
  Run& holder = run(at.run);
  if (at.offset != holder.begin && at.offset + 1 == holder.elements.size()) {
    holder.elements.pop_back();
    at.run = BlockState::kUnhashed;
    if (holder.elements.size() < holder.elements.capacity() / 4) {
      holder.elements.shrink_to_fit();
    }
    return;
  }
  forget_any(block);
}

}  // namespace oomcast::kv
