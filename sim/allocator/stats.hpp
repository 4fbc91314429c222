// What torch.cuda.memory_stats() counts, as far as anything reads it.
#pragma once

#include <cstdint>

#include "sim/core/units.hpp"

namespace oomcast::allocator {

struct AllocatorStats {
  // Bytes of whole blocks handed out; with freed ones that still wait for events: active.
  Bytes allocated;
  Bytes active;
  Bytes requested;  // by the callers of active blocks
  Bytes reserved;   // segments and mapped pages
  // Free blocks of segments that are in part in use; expandable segments are not counted.
  Bytes inactive_split;
  std::int64_t allocations = 0;
  std::int64_t active_blocks = 0;
  std::int64_t segments = 0;  // not expandable
  std::int64_t inactive_split_blocks = 0;

  // The part of the small pools, private ones included.
  Bytes small_allocated;
  Bytes small_active;
  Bytes small_reserved;
  Bytes small_inactive_split;

  Bytes allocated_peak;
  Bytes active_peak;
  Bytes requested_peak;
  Bytes reserved_peak;

  std::int64_t alloc_retries = 0;
  std::int64_t ooms = 0;
  std::int64_t sync_all_streams = 0;
  std::int64_t device_allocs = 0;  // cudaMalloc, and one a mapped run
  std::int64_t device_frees = 0;
  std::int64_t oom_rejections = 0;
  // Blocks and segments at or above max_split_size now.
  std::int64_t oversize_allocations = 0;
  std::int64_t oversize_segments = 0;

  friend bool operator==(const AllocatorStats&, const AllocatorStats&) = default;
};

}  // namespace oomcast::allocator
