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

}  // namespace oomcast::allocator
