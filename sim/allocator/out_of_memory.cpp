#include "sim/allocator/out_of_memory.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace oomcast::allocator {

std::string format_torch_size(Bytes size) {
  const auto count = static_cast<double>(size.count());
  if (size <= kKiB) {
    return fmt::format("{} bytes", size.count());
  }
  if (size <= kMiB) {
    return fmt::format("{:.2f} KiB", count / static_cast<double>(kKiB.count()));
  }
  if (size <= kGiB) {
    return fmt::format("{:.2f} MiB", count / static_cast<double>(kMiB.count()));
  }
  return fmt::format("{:.2f} GiB", count / static_cast<double>(kGiB.count()));
}

Bytes OutOfMemory::short_by() const {
  const Bytes by_driver = segment - device_free;
  const Bytes by_limit = has_limit ? reserved + segment - limit : Bytes{};
  return std::max({by_driver, by_limit, Bytes{}});
}

std::string OutOfMemory::message() const {
  if (kind == Kind::kBeyondExabyte) {
    return "CUDA out of memory. Tried to allocate more than 1EB memory.";
  }
  if (kind == Kind::kRejected) {
    return "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
           "per_process_memory_fraction limit. Requested size: " +
           format_torch_size(requested);
  }
  std::string text = fmt::format(
      "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is "
      "free. Including non-PyTorch memory, this process has {} memory in use. ",
      format_torch_size(segment), device_index, format_torch_size(device_total),
      format_torch_size(device_free), format_torch_size(process_used));
  if (has_limit) {
    text += format_torch_size(limit) + " allowed; ";
  }
  text += fmt::format("Of the allocated memory {} is allocated by PyTorch, ",
                      format_torch_size(allocated + free_in_private_pools));
  if (free_in_private_pools > Bytes{}) {
    text += fmt::format("with {} allocated in private pools (e.g., CUDA Graphs), ",
                        format_torch_size(free_in_private_pools));
  }
  text += fmt::format("and {} is reserved by PyTorch but unallocated. ",
                      format_torch_size(reserved - allocated - free_in_private_pools));
  text += expandable_segments
              ? "expandable_segments is enabled. If instead the process is running out of virtual "
                "address space (VSZ), expandable segments may be over-reserving VA (each segment "
                "reserves ~9/8 of device memory, times the number of streams); reduce it via "
                "PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve / "
                "expandable_segments_reserve_by_class."
              : "If reserved but unallocated memory is large try setting "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
                "documentation for Memory Management  "
                "(https://docs.pytorch.org/docs/stable/notes/"
                "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
  return text;
}

}  // namespace oomcast::allocator
