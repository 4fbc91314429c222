#include "sim/kernels/cub.hpp"

#include <algorithm>
#include <initializer_list>

#include "sim/kernels/buffer.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kAlignment = 256;
// Descriptors before the first tile, so that a whole warp can look back.
constexpr std::int64_t kTilePadding = 32;
constexpr std::int64_t kOffsetBytes = 8;

std::int64_t storage(std::initializer_list<std::int64_t> parts) {
  std::int64_t sum = kAlignment - 1;
  for (const std::int64_t part : parts) {
    sum = detail::checked_add(sum, align_up(part, kAlignment));
  }
  return sum;
}

// Items a block sorts in one pass.
std::int64_t onesweep_tile(const RadixSort& sort, const models::GpuSpec& gpu) {
  const bool hopper_or_newer = gpu.compute_major >= 9;
  if (sort.key_bytes == 2) {
    return 5632;
  }
  if (gpu.compute_major < 8) {
    return 2816;
  }
  if (sort.value_bytes == 0) {
    return hopper_or_newer ? 5760 : 3840;
  }
  return hopper_or_newer ? 5376 : 3072;
}

std::int64_t downsweep_storage(const RadixSort& sort, const models::GpuSpec& gpu) {
  constexpr std::int64_t kBlocksPerSm = 2;
  constexpr std::int64_t kSubscription = 5;  // waves of blocks CUB's grids are made of
  constexpr std::int64_t kDigits = 128;
  constexpr std::int64_t kScanTile = 5632;
  const std::int64_t spine = kBlocksPerSm * kSubscription * gpu.sm_count * kDigits + kScanTile;
  return storage({spine * kOffsetBytes, product(sort.items, sort.key_bytes),
                  product(sort.items, sort.value_bytes)});
}

std::int64_t scan_by_key_tile(const models::GpuSpec& gpu) {
  if (gpu.compute_major >= 10) {
    return 4480;
  }
  if (gpu.compute_major == 9) {
    return 4032;
  }
  return gpu.compute_major == 8 && gpu.compute_minor == 0 ? 3840 : 2304;
}

}  // namespace

std::int64_t radix_sort_storage(const RadixSort& sort, const models::GpuSpec& gpu) {
  if (sort.key_bytes == 2 && gpu.compute_major < 9) {
    return downsweep_storage(sort, gpu);
  }
  constexpr std::int64_t kRadixBits = 8;
  constexpr std::int64_t kDigits = 1 << kRadixBits;
  constexpr std::int64_t kCounterBytes = 4;
  const std::int64_t tile = onesweep_tile(sort, gpu);
  // A pass looks back over at most 2^28 items; more are sorted in portions.
  const std::int64_t portion = ((1 << 28) - 1) / tile * tile;
  const std::int64_t portions = div_ceil(sort.items, portion);
  const std::int64_t passes = div_ceil(sort.bits, kRadixBits);
  const std::int64_t blocks = div_ceil(std::min(sort.items, portion), tile);
  const std::int64_t copied = passes > 1 ? sort.items : 0;
  return storage({portions * passes * kDigits * kOffsetBytes, blocks * kDigits * kCounterBytes,
                  product(copied, sort.key_bytes), product(copied, sort.value_bytes),
                  portions * passes * kCounterBytes});
}

std::int64_t segmented_radix_sort_storage(const RadixSort& sort) {
  return storage({product(sort.items, sort.key_bytes), product(sort.items, sort.value_bytes)});
}

std::int64_t scan_storage(std::int64_t items) {
  constexpr std::int64_t kTile = 1920;
  constexpr std::int64_t kDescriptorBytes = 8;
  const std::int64_t tiles = div_ceil(items, kTile);
  // The tile state aligns itself, and the dispatch layer aligns it once more.
  return storage({storage({(tiles + kTilePadding) * kDescriptorBytes})});
}

std::int64_t scan_by_key_storage(std::int64_t items, const models::GpuSpec& gpu) {
  constexpr std::int64_t kDescriptorBytes = 16;
  constexpr std::int64_t kKeyBytes = 4;
  const std::int64_t tiles = div_ceil(items, scan_by_key_tile(gpu));
  return storage({(tiles + kTilePadding) * kDescriptorBytes, (tiles + 1) * kKeyBytes});
}

}  // namespace oomcast::kernels
