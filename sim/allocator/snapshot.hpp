// The allocator's memory as lists of segments and blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/allocator/ids.hpp"
#include "sim/core/units.hpp"

namespace oomcast::allocator {

enum class BlockUse : std::uint8_t {
  kAllocated,
  kPendingFree,  // freed, waits for events of other streams
  kFree,
  kUnmapped,  // addresses of an expandable segment without memory
};

struct BlockLayout {
  Bytes size;
  BlockUse use = BlockUse::kFree;
  Bytes requested;                          // of allocated and pending blocks
  BlockHandle handle = BlockHandle::kNull;  // of allocated blocks
  std::uint32_t tag = 0;
};

struct SegmentLayout {
  std::int64_t number = 0;
  std::int64_t address = 0;
  Bytes size;
  Bytes page;  // 0: not expandable
  StreamId stream = StreamId::kDefault;
  PoolId pool = PoolId::kDefault;
  bool is_small = false;
  std::vector<BlockLayout> blocks;  // in address order; they tile the segment
};

// As torch.cuda.memory_snapshot() lists it: an expandable segment appears once for each mapped run,
// and unmapped addresses do not appear.
struct SegmentSnapshot {
  std::int64_t number = 0;
  Bytes offset;  // within the segment of that number
  std::int64_t address = 0;
  Bytes size;
  Bytes allocated;
  Bytes active;
  Bytes requested;
  StreamId stream = StreamId::kDefault;
  PoolId pool = PoolId::kDefault;
  bool is_small = false;
  bool is_expandable = false;
  std::vector<BlockLayout> blocks;
};

}  // namespace oomcast::allocator
