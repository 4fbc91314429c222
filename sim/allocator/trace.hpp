// What happened inside the allocator, call for call: PyTorch's own trace entries, and what it asked
// of the driver besides them.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/allocator/ids.hpp"
#include "sim/core/units.hpp"

namespace oomcast::allocator {

enum class Action : std::uint8_t {
  // PyTorch's trace entries.
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kOom,
  // The driver's share that PyTorch does not trace.
  kMallocFailed,
  kReserve,
  kUnreserve,
  kCreateFailed,  // size: of a page
};

struct TraceEvent {
  Action action = Action::kAlloc;
  BlockHandle block = BlockHandle::kNull;  // of kAlloc and the frees
  std::uint32_t tag = 0;                   // given at allocation
  StreamId stream = StreamId::kDefault;
  PoolId pool = PoolId::kDefault;  // of blocks and segments
  std::int64_t address = 0;        // of kOom: bytes free on the device
  Bytes size{};                    // of kAlloc and the frees: as requested
  std::int64_t segment = 0;        // of segment actions: its number
  std::int64_t first_page = 0;
  std::int64_t pages = 0;  // of kSegmentMap and kSegmentUnmap
};

using Trace = std::vector<TraceEvent>;

}  // namespace oomcast::allocator
