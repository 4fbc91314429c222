// The first line of a recording of allocator calls: the device, the settings, the statistics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/json.hpp"

namespace oomcast::golden {

// A statistic as recordings name it.
struct StatName {
  const char* name;
  std::int64_t (*value)(const allocator::CachingAllocator&);
};

struct AllocatorScenario {
  allocator::DeviceConfig device;
  allocator::AllocatorSettings settings;
  std::vector<const StatName*> stats;
};

// Throws ConfigError, with all that is wrong, for a line that describes no such recording.
AllocatorScenario read_allocator_scenario(const Json& header, const std::string& file);

}  // namespace oomcast::golden
