// Hashes of KV blocks by content, without holding tokens.
//
// Token i of segment s is the pair (s, i). A block is a list of maximal runs (segment, offset,
// length); its hash chains over the hash of the block before it, so equal hashes mean equal
// prefixes. Hashes are 64-bit mixes: among n distinct blocks in a pool, two collide with
// probability about n^2 / 2^65 (a million blocks: 3e-8).
//
// A block inside one long segment costs one mix, whatever its size in tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/content.hpp"
#include "sim/kv/block_pool.hpp"

namespace oomcast::kv {

// The key of a block hash in the index of one group. Never 0.
BlockKey block_key(std::uint64_t hash, std::size_t group);

// The content of one request and the hashes of its full blocks so far. Buffers are reused.
class HashChain {
 public:
  // `lookahead`: a block's hash also covers so many tokens after it, and exists once they are
  // known.
  void set_sizes(std::int64_t block_size, std::int64_t lookahead) {
    block_size_ = block_size;
    lookahead_ = lookahead;
  }
  // Empties content and hashes.
  void clear();
  // Appends to the content; the last segment is taken as endless.
  void append(ContentSegment segment);

  // Hashes of all blocks that are full within the first `known` tokens.
  void extend(std::int64_t known);
  [[nodiscard]] std::int64_t blocks() const { return static_cast<std::int64_t>(hashes_.size()); }
  [[nodiscard]] std::uint64_t hash(std::int64_t block) const {
    return hashes_[static_cast<std::size_t>(block)];
  }

 private:
  struct Place {
    std::size_t segment = 0;
    std::int64_t offset = 0;
  };
  // Mixes the `count` tokens from `place` on into `hash` and moves the place behind them.
  std::uint64_t mix_runs(std::uint64_t hash, Place& place, std::int64_t count) const;

  std::int64_t block_size_ = 16;
  std::int64_t lookahead_ = 0;
  std::vector<ContentSegment> content_;
  Place next_;  // first token not hashed yet
  std::vector<std::uint64_t> hashes_;
};

}  // namespace oomcast::kv
