// Any text as PYTORCH_CUDA_ALLOC_CONF: settings within PyTorch's bounds, whatever it complains of,
// and an allocator that works under them.
#include <cstdint>
#include <string>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/error.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oomcast;
  using namespace oomcast::allocator;
  const std::string text(reinterpret_cast<const char*>(data), size);
  Problems problems;
  std::vector<std::string> warnings;
  const AllocatorSettings settings = parse_allocator_settings(text, "conf", problems, warnings);
  OOMCAST_CHECK(settings.large_segment_size > 10 * kMiB, "large segments");
  OOMCAST_CHECK(!settings.max_split_size || *settings.max_split_size > Bytes{}, "max split size");
  OOMCAST_CHECK(
      settings.per_process_memory_fraction >= 0 && settings.per_process_memory_fraction <= 1,
      "fraction");
  CachingAllocator allocator({.total = 64 * kMiB}, settings);
  for (const std::int64_t bytes : {1, 600, 1 << 20, 3 << 20, 12'345'678, 1 << 30}) {
    if (const auto block = allocator.allocate(Bytes{bytes})) {
      allocator.free(*block);
    }
  }
  allocator.empty_cache();
  allocator.verify();
  return 0;
}
