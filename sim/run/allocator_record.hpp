// What a run at the allocator's depth leaves besides its rows: the allocator's own numbers, the
// out-of-memory it ended in, and its history for PyTorch's memory viewer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/allocator/settings.hpp"
#include "sim/allocator/snapshot.hpp"
#include "sim/allocator/stats.hpp"
#include "sim/allocator/trace.hpp"
#include "sim/core/units.hpp"
#include "sim/ledger/classes.hpp"

namespace oomcast {

// A place in a step's program that allocates.
struct AllocationSite {
  std::string tensor;
  std::string formula;  // "T x H x b"
  std::string op;
  std::string scope;  // "layer 3"
  Leaf leaf = Leaf::kRuntimeActivations;
};

// Calls of the allocator, the startup's and the last ones of the serving, and its memory at the
// end.
struct MemoryHistory {
  struct Event {
    allocator::TraceEvent event;
    SimTime at;
  };
  // A step whose allocations have the tags from `first_tag` on, by place in the step.
  struct Step {
    SimTime at;
    Tokens tokens;
    std::int64_t rows = 0;
    std::size_t way = 0;  // of running: into `sites`
    std::uint32_t first_tag = 0;
  };

  std::vector<Event> events;  // in order
  std::vector<Step> steps;    // by first_tag
  std::vector<std::vector<AllocationSite>> sites;
  std::vector<allocator::SegmentSnapshot> segments;
  allocator::AllocatorSettings settings;
};

struct AllocatorRecord {
  // An allocation that found no memory.
  struct Failure {
    AllocationSite site;
    SimTime at;
    Tokens tokens;  // of the step
    std::int64_t rows = 0;
    Bytes requested;
    Bytes device_free;
    Bytes cached;  // in free blocks of the default pool
    struct Live {
      AllocationSite site;
      Bytes bytes;
    };
    std::vector<Live> live;  // tensors of the step alive then, in the order they were made

    // Memory enough, but in pieces.
    [[nodiscard]] bool is_fragmented() const { return cached + device_free >= requested; }
  };

  allocator::AllocatorStats stats;  // at the end
  Bytes highest_reserved;
  SimTime highest_reserved_at;
  std::optional<Failure> failure;
  MemoryHistory history;
};

}  // namespace oomcast
