// Temporary storage that CUB's device-wide algorithms ask for (CCCL 3.2, as in CUDA 13.2).
//
// Sizes are sums of parts, each a multiple of 256 B, plus 255 B of slack to align the first. What
// varies with the GPU is the tile a block works on (CUB's tuning tables). Formulas: CUB's dispatch
// layer; tiles: read off the library's own answers for compute capability 7.5 to 12.0, and the
// recordings of PyTorch 2.15 on sm_90 agree to the byte.
#pragma once

#include <cstdint>

#include "models/gpu.hpp"

namespace oomcast::kernels {

struct RadixSort {
  std::int64_t items = 0;
  std::int64_t key_bytes = 0;
  std::int64_t value_bytes = 0;  // 0: keys alone
  std::int64_t bits = 0;         // of the key that are sorted on
};

// DeviceRadixSort with 64-bit offsets, not in place: histograms, look-back of one-sweep passes and,
// if there are several passes, a second copy of keys and values. Keys of 2 bytes before compute
// capability 9 go through upsweep and downsweep, whose histograms grow with resident blocks; 2 a
// multiprocessor are assumed there.
std::int64_t radix_sort_storage(const RadixSort& sort, const models::GpuSpec& gpu);

// DeviceSegmentedRadixSort: a third copy of keys and values.
std::int64_t segmented_radix_sort_storage(const RadixSort& sort);

// DeviceScan of 4-byte values with an operator that CUB has no tuning for (std::plus).
std::int64_t scan_storage(std::int64_t items);

// DeviceScan by key, 4-byte keys and values, sum.
std::int64_t scan_by_key_storage(std::int64_t items, const models::GpuSpec& gpu);

}  // namespace oomcast::kernels
