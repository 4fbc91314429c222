// The free blocks of one pool and stream in the order in which PyTorch searches them: by size, then
// by age of the segment, then by address.
//
// A sorted list in chunks that span two cache lines of keys. A key is the size in units of 512 B;
// the rest of the order is asked of the caller, `before(a, b)` for two blocks of equal size, and is
// needed only where sizes are equal. Searching counts smaller keys over a whole chunk, without a
// branch, which is what makes small lists (tens of blocks, the common case) cost a few nanoseconds;
// large ones cost a step a chunk more.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace oomcast::allocator {

class FreeIndex {
 public:
  using Key = std::int32_t;
  using Id = std::uint32_t;

  struct Position {
    std::uint32_t chunk;
    std::uint32_t slot;
    friend bool operator==(const Position&, const Position&) = default;
  };

  [[nodiscard]] bool empty() const { return chunks_.empty(); }
  [[nodiscard]] Position begin() const { return {0, 0}; }
  [[nodiscard]] Position end() const { return {static_cast<std::uint32_t>(chunks_.size()), 0}; }
  [[nodiscard]] bool at_end(Position at) const { return at.chunk == chunks_.size(); }
  [[nodiscard]] Id id(Position at) const { return chunks_[at.chunk].ids[at.slot]; }
  [[nodiscard]] Position next(Position at) const {
    return at.slot + 1 < chunks_[at.chunk].count ? Position{at.chunk, at.slot + 1}
                                                 : Position{at.chunk + 1, 0};
  }
  // The one before; `at` is not begin().
  [[nodiscard]] Position previous(Position at) const {
    return at.slot > 0 ? Position{at.chunk, at.slot - 1}
                       : Position{at.chunk - 1, chunks_[at.chunk - 1].count - 1};
  }

  // The first with a key at or above `key`.
  [[nodiscard]] Position lower_bound(Key key) const {
    const std::uint32_t chunk = chunk_of(key);
    return chunk == chunks_.size() ? end() : Position{chunk, chunks_[chunk].count_below(key)};
  }

  // Where a block with this key stands, or would.
  template <typename Before>
  [[nodiscard]] Position locate(Key key, Id id, const Before& before) const {
    Position at = lower_bound(key);
    // Nearly always the next key is another one.
    while (at.chunk < chunks_.size() && chunks_[at.chunk].keys[at.slot] == key) [[unlikely]] {
      const Chunk& chunk = chunks_[at.chunk];
      // Whole chunks of equal keys are skipped at once.
      if (chunk.keys[chunk.count - 1] == key && before(chunk.ids[chunk.count - 1], id)) {
        at = {at.chunk + 1, 0};
        continue;
      }
      if (!before(chunk.ids[at.slot], id)) {
        break;
      }
      ++at.slot;
    }
    return at;
  }

  template <typename Before>
  void insert(Key key, Id id, const Before& before) {
    insert_at(locate(key, id, before), key, id);
  }

  void erase(Position at) {
    Chunk& chunk = chunks_[at.chunk];
    chunk.close(at.slot);
    if (chunk.count == 0) {
      remove_chunk(at.chunk);
      return;
    }
    last_keys_[at.chunk] = chunk.keys[chunk.count - 1];
    if (chunk.count < kChunk / 4) {
      join_with_next(at.chunk);
    }
  }

  // The block at `at` gets another key, or another block takes its place.
  template <typename Before>
  void replace(Position at, Key key, Id id, const Before& before) {
    Chunk& chunk = chunks_[at.chunk];
    const bool is_last = at.slot + 1 == chunk.count;
    const bool above_left = at.slot > 0 ? chunk.keys[at.slot - 1] < key : at.chunk == 0;
    const bool below_right =
        is_last ? at.chunk + 1 == chunks_.size() : key < chunk.keys[at.slot + 1];
    if (above_left && below_right) {
      chunk.keys[at.slot] = key;
      chunk.ids[at.slot] = id;
      last_keys_[at.chunk] = is_last ? key : last_keys_[at.chunk];
      return;
    }
    erase(at);
    insert(key, id, before);
  }

  void clear() {
    chunks_.clear();
    last_keys_.clear();
  }

 private:
  static constexpr std::uint32_t kChunk = 32;
  static constexpr Key kNoKey = std::numeric_limits<Key>::max();

  struct Chunk {
    Chunk() { keys.fill(kNoKey); }

    [[nodiscard]] std::uint32_t count_below(Key key) const {
      // Unused slots hold the largest key, so the loop has a fixed length and becomes a few vector
      // instructions.
      std::int32_t below = 0;
      for (const Key present : keys) {
        below += present < key ? 1 : 0;
      }
      return static_cast<std::uint32_t>(below);
    }
    void open(std::uint32_t slot) {
      std::copy_backward(keys.begin() + slot, keys.begin() + count, keys.begin() + count + 1);
      std::copy_backward(ids.begin() + slot, ids.begin() + count, ids.begin() + count + 1);
      ++count;
    }
    void close(std::uint32_t slot) {
      std::copy(keys.begin() + slot + 1, keys.begin() + count, keys.begin() + slot);
      std::copy(ids.begin() + slot + 1, ids.begin() + count, ids.begin() + slot);
      --count;
      keys[count] = kNoKey;
    }

    std::array<Key, kChunk> keys;
    std::array<Id, kChunk> ids{};
    std::uint32_t count = 0;
  };

  [[nodiscard]] std::uint32_t chunk_of(Key key) const {
    constexpr std::size_t kFewChunks = 16;
    if (last_keys_.size() > kFewChunks) [[unlikely]] {
      return static_cast<std::uint32_t>(
          std::lower_bound(last_keys_.begin(), last_keys_.end(), key) - last_keys_.begin());
    }
    std::uint32_t chunk = 0;
    while (chunk < last_keys_.size() && last_keys_[chunk] < key) {
      ++chunk;
    }
    return chunk;
  }

  void insert_at(Position at, Key key, Id id) {
    if (at.chunk == chunks_.size()) {
      if (chunks_.empty()) {
        chunks_.emplace_back();
        last_keys_.push_back(key);
      }
      at = {static_cast<std::uint32_t>(chunks_.size() - 1), chunks_.back().count};
    }
    if (chunks_[at.chunk].count == kChunk) [[unlikely]] {
      at = split_chunk(at);
    }
    Chunk& chunk = chunks_[at.chunk];
    chunk.open(at.slot);
    chunk.keys[at.slot] = key;
    chunk.ids[at.slot] = id;
    last_keys_[at.chunk] = chunk.keys[chunk.count - 1];
  }

  Position split_chunk(Position at) {
    constexpr std::uint32_t kHalf = kChunk / 2;
    chunks_.insert(chunks_.begin() + at.chunk + 1, Chunk());
    Chunk& left = chunks_[at.chunk];
    Chunk& right = chunks_[at.chunk + 1];
    std::copy(left.keys.begin() + kHalf, left.keys.end(), right.keys.begin());
    std::copy(left.ids.begin() + kHalf, left.ids.end(), right.ids.begin());
    std::fill(left.keys.begin() + kHalf, left.keys.end(), kNoKey);
    left.count = kHalf;
    right.count = kHalf;
    last_keys_.insert(last_keys_.begin() + at.chunk, left.keys[kHalf - 1]);
    return at.slot <= kHalf ? at : Position{at.chunk + 1, at.slot - kHalf};
  }

  void join_with_next(std::uint32_t index) {
    if (index + 1 == chunks_.size()) {
      return;
    }
    Chunk& left = chunks_[index];
    const Chunk& right = chunks_[index + 1];
    if (left.count + right.count > kChunk * 3 / 4) {
      return;
    }
    std::copy(right.keys.begin(), right.keys.begin() + right.count, left.keys.begin() + left.count);
    std::copy(right.ids.begin(), right.ids.begin() + right.count, left.ids.begin() + left.count);
    left.count += right.count;
    last_keys_[index] = left.keys[left.count - 1];
    remove_chunk(index + 1);
  }

  void remove_chunk(std::uint32_t index) {
    chunks_.erase(chunks_.begin() + index);
    last_keys_.erase(last_keys_.begin() + index);
  }

  std::vector<Chunk> chunks_;   // none is empty
  std::vector<Key> last_keys_;  // of each chunk
};

}  // namespace oomcast::allocator
