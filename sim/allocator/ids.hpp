// Names of what the allocator deals in. They compare as their numbers do.
#pragma once

#include <cstdint>

namespace oomcast::allocator {

// A CUDA stream. 0 is the default stream.
enum class StreamId : std::int64_t { kDefault = 0 };

// A memory pool: 0 is the default pool, others are private (CUDA graphs, MemPool).
enum class PoolId : std::int64_t { kDefault = 0 };

// One live allocation: an index into the allocator's blocks, valid until it is freed. kNull is what
// an allocation of 0 bytes gives.
enum class BlockHandle : std::uint32_t { kNull = 0xffffffff };

// A handle, or nothing when memory ran out; used like std::optional, which g++ 12 returns through
// memory in a way that stalls for as long as a cached allocation takes.
class Allocation {
 public:
  constexpr Allocation() = default;
  constexpr Allocation(BlockHandle block) : block_(block) {}  // NOLINT: as std::optional converts

  [[nodiscard]] constexpr bool has_value() const { return block_ != kNothing; }
  constexpr explicit operator bool() const { return has_value(); }
  constexpr BlockHandle operator*() const { return block_; }

  friend constexpr bool operator==(Allocation, Allocation) = default;

 private:
  static constexpr BlockHandle kNothing{0xfffffffe};
  BlockHandle block_ = kNothing;
};

}  // namespace oomcast::allocator
