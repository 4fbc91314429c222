// The pool of KV blocks for engines in which a request holds all of its blocks until it ends: block
// for block what block_pool.hpp does, at a cost for spans of blocks in place of blocks.
//
// A span is blocks that were taken one behind the other and that the same requests have held ever
// since. All of them have as many references; while they have none the span stands in the free list
// as a whole, evicted from its last block on, which is the order in which a request gives them up.
// Its leading blocks can have keys, each that of a prefix one block longer than the one before.
//
// Keys are found as in prefix_index.hpp: only the first one of a span is hashed, and
//   - a key of several blocks is the first one of each of their spans,
//   - any other key stands right behind the key of the block before it.
#pragma once

#include <tsl/robin_map.h>

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/kv/block_pool.hpp"

namespace oomcast::kv {

class SpanPool {
 public:
  using SpanId = std::int32_t;
  static constexpr SpanId kNoSpan = -1;

  // A request's blocks in order. Spans that are cut while it holds them stay one part of it.
  struct Part {
    SpanId span = kNoSpan;
    std::int32_t blocks = 0;  // of the span and those cut off behind it
  };
  struct Table {
    boost::container::small_vector<Part, 2> parts;
    std::int64_t blocks = 0;

    void clear() {
      parts.clear();
      blocks = 0;
    }
  };

  // Where the blocks of a prefix were found. Void once the pool changes.
  struct Hit {
    struct Piece {
      SpanId span = kNoSpan;
      std::int32_t begin = 0;
      std::int32_t end = 0;
    };
    std::vector<Piece> pieces;
    std::int64_t blocks = 0;

    void clear() {
      pieces.clear();
      blocks = 0;
    }
    // Gives up all but the first `count` blocks.
    void keep(std::int64_t count);
  };

  // As BlockPool.
  SpanPool(std::int64_t num_blocks, bool unhashed_first);
  [[nodiscard]] std::int64_t total() const { return total_; }
  [[nodiscard]] std::int64_t free() const { return free_; }
  [[nodiscard]] std::int64_t cached_free() const { return cached_free_; }
  [[nodiscard]] std::uint64_t insertions() const { return insertions_; }
  [[nodiscard]] std::uint64_t evictions() const { return evictions_; }

  // The first blocks whose keys these are, as far as all of them are known.
  void find(std::span<const BlockKey> keys, Hit& hit) const;
  // How many of them are free.
  [[nodiscard]] std::int64_t free_of(const Hit& hit) const;
  // One reference more for each of them; the table, empty until then, holds them.
  void touch(const Hit& hit, Table& table);
  // Appends blocks from the front of the free list. Needs free() >= count.
  // `expected`: blocks that the table will come to hold at most.
  void take(std::int64_t count, std::int64_t expected, Table& table);
  void take(Table& table);  // one block
  // Keys of the table's blocks from `first` on, the first one without a key.
  void insert(std::span<const BlockKey> keys, std::int64_t first, Table& table);
  // Gives up one reference of each, the last block first. The first `hashed` blocks have a hash:
  // those without a key one that only this request knows. Leaves the table empty.
  void release(Table& table, std::int64_t hashed);

  // Block by block, for plans with details, tests and digests.
  void list(const Table& table, std::vector<BlockId>& blocks) const;
  [[nodiscard]] PoolListing listing() const;
  // Aborts unless spans, counters and keys agree.
  void check() const;

 private:
  // A vector that is cut in two at the cost of the shorter part.
  template <typename Value>
  class Run {
   public:
    [[nodiscard]] std::size_t size() const {
      return values_.size() - static_cast<std::size_t>(begin_);
    }
    [[nodiscard]] std::size_t capacity() const { return values_.capacity(); }
    [[nodiscard]] auto begin() const { return values_.begin() + begin_; }
    [[nodiscard]] auto end() const { return values_.end(); }
    [[nodiscard]] Value operator[](std::size_t i) const { return begin()[to_signed(i)]; }
    [[nodiscard]] Value front() const { return *begin(); }
    [[nodiscard]] Value back() const { return values_.back(); }

    void reserve(std::size_t count) {
      drop_dead(count);
      values_.reserve(count);
    }
    template <typename Iterator>
    void append(Iterator first, Iterator last) {
      drop_dead(size() + static_cast<std::size_t>(last - first));
      values_.insert(values_.end(), first, last);
    }
    void push_back(Value value) {
      drop_dead(size() + 1);
      values_.push_back(value);
    }
    void pop_back() { values_.pop_back(); }
    // Gives up all but the first `count`.
    void keep(std::size_t count) { values_.resize(static_cast<std::size_t>(begin_) + count); }
    void clear() {
      values_.clear();
      begin_ = 0;
    }
    // Keeps the first `count` and returns the rest.
    Run cut(std::size_t count) {
      Run rest;
      if (count < size() / 2) {
        rest = std::move(*this);
        values_.assign(rest.begin(), rest.begin() + to_signed(count));
        begin_ = 0;
        rest.begin_ += to_signed(count);
      } else {
        rest.values_.assign(begin() + to_signed(count), end());
        keep(count);
      }
      return rest;
    }

   private:
    static std::ptrdiff_t to_signed(std::size_t i) { return static_cast<std::ptrdiff_t>(i); }
    // Before so many are more than there is room for.
    void drop_dead(std::size_t count) {
      if (begin_ > 0 && static_cast<std::size_t>(begin_) + count > values_.capacity()) {
        values_.erase(values_.begin(), values_.begin() + begin_);
        begin_ = 0;
      }
    }

    std::vector<Value> values_;
    std::ptrdiff_t begin_ = 0;  // those before it were cut off
  };

  struct Span {
    Run<BlockId> blocks;
    Run<BlockKey> keys;         // of the first blocks
    std::int64_t unshared = 0;  // of the blocks behind those: with a hash that is in no index
    std::int32_t references = 0;
    SpanId rest = kNoSpan;  // cut off behind it: who held this one held that one too
    // While it has no reference.
    SpanId previous = kNoSpan;
    SpanId next = kNoSpan;
    // Spans with the same first key, in order of insertion.
    SpanId next_same = kNoSpan;
    SpanId last_same = kNoSpan;  // of the first one: the last one

    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(blocks.size()); }
    [[nodiscard]] std::int64_t keyed() const { return static_cast<std::int64_t>(keys.size()); }
    [[nodiscard]] std::int64_t hashed() const { return keyed() + unshared; }
  };
  struct Identity {
    std::size_t operator()(BlockKey key) const { return key; }
  };

  [[nodiscard]] const Span& at(SpanId id) const { return spans_[static_cast<std::size_t>(id)]; }
  Span& at(SpanId id) { return spans_[static_cast<std::size_t>(id)]; }

  SpanId new_span();
  void spare(SpanId id);
  SpanId cut(SpanId id, std::int64_t where);
  void link_free(SpanId id, SpanId before);
  void unlink_free(SpanId id);
  void link_key(SpanId id);
  void note_head(BlockKey key);
  [[nodiscard]] bool may_be_head(BlockKey key) const {
    return (noted_heads_[word_of(key)] & bit_of(key)) != 0;
  }
  // How many keys at the front are none for certain.
  [[nodiscard]] std::size_t no_heads(std::span<const BlockKey> keys) const;
  [[nodiscard]] std::size_t word_of(BlockKey key) const { return (key / kWordBits) & noted_mask_; }
  [[nodiscard]] static std::uint64_t bit_of(BlockKey key) {
    return std::uint64_t{1} << (key % kWordBits);
  }
  void unlink_key(SpanId id);
  [[nodiscard]] SpanId behind_head(SpanId id, BlockKey key) const;
  SpanId own_end(Table& table);
  void split_off_tail(Table& table);
  bool become_known(SpanId before, BlockKey key);
  void shrink(SpanId id, std::int64_t count);
  void take_many(std::int64_t count, std::int64_t expected, Table& table);

  std::int64_t total_;
  bool unhashed_first_;
  std::int64_t free_ = 0;
  std::int64_t cached_free_ = 0;
  std::uint64_t insertions_ = 0;
  std::uint64_t evictions_ = 0;
  std::vector<Span> spans_;
  std::vector<SpanId> spare_;
  SpanId first_free_ = kNoSpan;
  SpanId last_free_ = kNoSpan;
  tsl::robin_map<BlockKey, SpanId, Identity> heads_;  // first keys; order never reaches a result
  // A bit for each first key and for some that no longer are: most keys can be told from those
  // without a search.
  static constexpr std::int64_t kWordBits = 64;
  std::vector<std::uint64_t> noted_heads_;  // a power of two of them
  std::size_t noted_mask_ = 0;
  std::int64_t noted_ = 0;
  std::vector<SpanId> held_;  // of the table being given up
};

inline void SpanPool::take(std::int64_t count, std::int64_t expected, Table& table) {
  if (count > 0) {
    take_many(count, expected, table);
  }
}

// A request that decodes does this for every block, mostly behind a span of its own and from the
// end of one that has more.
inline void SpanPool::take(Table& table) {
  if (!table.parts.empty()) {
    Part& part = table.parts.back();
    Span& own = at(part.span);
    Span& front = at(first_free_);
    const std::int64_t left = front.size() - 1;
    if (own.references == 1 && own.size() == part.blocks && left > 0) {
      own.blocks.push_back(front.blocks.back());
      front.blocks.pop_back();
      if (front.keyed() > left) {
        front.keys.pop_back();
        ++evictions_;
        --cached_free_;
      } else if (front.hashed() > left) {
        --front.unshared;
        --cached_free_;
      }
      --free_;
      ++part.blocks;
      ++table.blocks;
      return;
    }
  }
  take_many(1, 0, table);
}

}  // namespace oomcast::kv
