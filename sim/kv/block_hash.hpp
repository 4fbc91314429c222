// Hashes of KV blocks by content, without holding tokens.
//
// Token i of segment s is the pair (s, i). A prefix is a list of maximal runs (segment, offset,
// length); its hash mixes the hash of all runs before the last with the last one's segment, offset
// and length, so equal hashes mean equal prefixes. Hashes are 64-bit mixes: among n distinct blocks
// in a pool, two collide with probability about n^2 / 2^65 (a million blocks: 3e-8).
//
// A block's hash is that of the prefix it ends. Blocks of one run cost one multiplication each,
// which waits for no other, whatever the block size in tokens.
#pragma once

#include <boost/container/vector.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/content.hpp"
#include "sim/kv/block_pool.hpp"

namespace oomcast::kv {

// The key of a block hash in the index of one group. Never 0.
inline BlockKey block_key(std::uint64_t hash, std::size_t group) {
  const BlockKey key = hash + group * 0x9e3779b97f4a7c15ULL;
  return key != 0 ? key : 1;
}

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
  // The same, and gives up the buffers.
  void free() { *this = HashChain{}; }
  // Appends to the content, before any hash; the last segment is taken as endless.
  void append(ContentSegment segment);

  // Hashes of all blocks that are full within the first `known` tokens.
  void extend(std::int64_t known);
  [[nodiscard]] std::int64_t blocks() const { return static_cast<std::int64_t>(hashes_.size()); }
  [[nodiscard]] std::uint64_t hash(std::int64_t block) const {
    return hashes_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] std::span<const std::uint64_t> hashes() const {
    return {hashes_.data(), hashes_.size()};
  }

 private:
  void enter(std::size_t segment, std::int64_t start, std::uint64_t hash);

  std::int64_t block_size_ = 16;
  std::int64_t lookahead_ = 0;
  std::vector<ContentSegment> content_;
  // The segment in which the next hash ends, or one before it.
  std::size_t segment_ = 0;
  std::int64_t start_ = 0;                          // position of its first token
  std::uint64_t base_ = 0;                          // hash of all before it and its id
  boost::container::vector<std::uint64_t> hashes_;  // which can grow without being zeroed first
};

}  // namespace oomcast::kv
