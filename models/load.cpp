#include "models/load.hpp"

#include <set>
#include <vector>

#include "sim/core/error.hpp"

namespace oomcast::models {
namespace {

constexpr Bytes kGranule{512};
constexpr Bytes kSmallLimit{std::int64_t{1} << 20};     // at most this: small pool
constexpr Bytes kSmallSegment{std::int64_t{2} << 20};   // segment of the small pool
constexpr Bytes kLargeSegment{std::int64_t{20} << 20};  // segment for less than kOwnSegment
constexpr Bytes kOwnSegment{std::int64_t{10} << 20};    // from here a segment of its own size
constexpr Bytes kSegmentStep{std::int64_t{2} << 20};
constexpr Bytes kNonSplitRounding{std::int64_t{20} << 20};

// The allocator's free lists as far as creating tensors one after another exercises them. Blocks
// that are freed and have free neighbours of their segment are merged with them.
class Pools {
 public:
  explicit Pools(Bytes max_split) : max_split_(max_split) {}

  struct Block {
    std::int64_t at = 0;  // segments get ascending addresses with a gap between them
    Bytes size;
    bool small = false;

    friend auto operator<=>(const Block&, const Block&) = default;
  };

  Block allocate(Bytes requested) {
    const Bytes size = align_up(std::max(requested, Bytes{1}), kGranule);
    const bool small = size <= kSmallLimit;
    Block block = take_free(size, small);
    if (block.size == Bytes{0}) {
      const Bytes segment = small                ? kSmallSegment
                            : size < kOwnSegment ? kLargeSegment
                                                 : align_up(size, kSegmentStep);
      block = {next_address_, segment, small};
      next_address_ += segment.count() + kGranule.count();
    }
    const Bytes rest = block.size - size;
    const bool splits = small ? rest >= kGranule
                              : rest > kSmallLimit && (max_split_ == Bytes{0} || size < max_split_);
    if (splits) {
      insert({block.at + size.count(), rest, small});
      block.size = size;
    }
    allocated_ += block.size;
    return block;
  }

  void free(const Block& block) {
    allocated_ -= block.size;
    insert(block);
  }

  [[nodiscard]] Bytes allocated() const { return allocated_; }

 private:
  struct BySize {
    bool operator()(const Block& left, const Block& right) const {
      return left.size != right.size ? left.size < right.size : left.at < right.at;
    }
  };
  using Free = std::set<Block, BySize>;

  // Best fit, or a block of size 0.
  Block take_free(Bytes size, bool small) {
    Free& pool = small ? small_ : large_;
    const auto at = pool.lower_bound({0, size, small});
    if (at == pool.end()) {
      return {};
    }
    if (max_split_ > Bytes{0}) {
      const bool too_large_to_split = size < max_split_ && at->size >= max_split_;
      const bool wasteful = size >= max_split_ && at->size >= size + kNonSplitRounding;
      if (too_large_to_split || wasteful) {
        return {};
      }
    }
    const Block block = *at;
    pool.erase(at);
    by_address_.erase(block);
    return block;
  }

  void insert(Block block) {
    Free& pool = block.small ? small_ : large_;
    auto next = by_address_.lower_bound(block);
    if (next != by_address_.end() && block.at + block.size.count() == next->at) {
      block.size += next->size;
      pool.erase(*next);
      next = by_address_.erase(next);
    }
    if (next != by_address_.begin()) {
      const auto before = std::prev(next);
      if (before->at + before->size.count() == block.at) {
        block.at = before->at;
        block.size += before->size;
        pool.erase(*before);
        by_address_.erase(before);
      }
    }
    pool.insert(block);
    by_address_.insert(block);
  }

  Bytes max_split_;
  Bytes allocated_;
  std::int64_t next_address_ = 0;
  Free small_;
  Free large_;
  std::set<Block> by_address_;
};

// The table of a rope is computed in fp32 (angles, cosines, sines, both side by side) and
// converted; what the computation leaves free serves the tensors that follow.
void allocate_rope_table(Pools& pools, const TensorBytes& table) {
  const std::int64_t elements = table.bytes.count() * 8 / bits_of(table.dtype);
  const Bytes half = bytes_of(DType::kFloat32, elements / 2);
  const Pools::Block angles = pools.allocate(half);
  const Pools::Block cosines = pools.allocate(half);
  const Pools::Block sines = pools.allocate(half);
  const Pools::Block both = pools.allocate(half * 2);
  pools.free(sines);
  pools.free(cosines);
  pools.free(angles);
  if (table.dtype == DType::kFloat32) {
    return;  // nothing to convert: this is the table
  }
  pools.allocate(table.bytes);
  pools.free(both);
}

}  // namespace

Bytes loaded_bytes(const RankWeights& weights, const LoadRules& rules) {
  Pools pools(rules.max_split_size);
  for (const TensorBytes& tensor : weights.tensors) {
    if (tensor.rope_table) {
      allocate_rope_table(pools, tensor);
    } else {
      pools.allocate(tensor.bytes);
    }
  }
  OOMCAST_CHECK(pools.allocated() >= weights.total(), "{} B in blocks for {} B of tensors",
                pools.allocated().count(), weights.total().count());
  return pools.allocated();
}

}  // namespace oomcast::models
