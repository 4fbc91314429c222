// Bytes that PyTorch's allocator counts as allocated once a rank's tensors are made.
#pragma once

#include <gtest/gtest.h>

#include "models/load.hpp"
#include "sim/allocator/caching_allocator.hpp"

namespace oomcast::models {

// `max_split_size` 0: unlimited, PyTorch's default.
inline Bytes loaded_bytes(const RankWeights& weights, Bytes max_split_size = Bytes{0}) {
  allocator::DeviceConfig device;
  device.total = allocator::kMaxDeviceBytes;
  allocator::AllocatorSettings settings;
  if (max_split_size > Bytes{0}) {
    settings.max_split_size = max_split_size;
  }
  allocator::CachingAllocator torch(device, settings);
  std::vector<allocator::BlockHandle> tensors;
  for (const LoadCall& call : load_sequence(weights)) {
    if (call.kind == LoadCall::Kind::kFree) {
      torch.free(tensors[call.tensor]);
    } else {
      const auto made = torch.allocate(call.bytes);
      EXPECT_TRUE(made);
      tensors.push_back(*made);
    }
  }
  return torch.stats().allocated;
}

}  // namespace oomcast::models
