// PYTORCH_CUDA_ALLOC_CONF / PYTORCH_ALLOC_CONF as PyTorch 2.15 reads it, oddities included.
// Source: c10/core/AllocatorConfig.{h,cpp}, c10/cuda/CUDAAllocatorConfig.{h,cpp}.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"

namespace oomcast::allocator {

// The variables in the order in which PyTorch looks; the first that is set counts alone.
inline constexpr std::array<std::string_view, 2> kConfVariables = {"PYTORCH_CUDA_ALLOC_CONF",
                                                                   "PYTORCH_ALLOC_CONF"};

enum class Backend : std::uint8_t { kNative, kCudaMallocAsync };

// How large a range of addresses an expandable segment reserves.
struct SegmentReserve {
  bool is_fraction = true;  // of the device's total; else GiB
  double value = 0;
};

struct AllocatorSettings {
  static constexpr std::size_t kRoundupIntervals = 16;  // 1 MiB, 2 MiB ... 32 GiB and above

  Backend backend = Backend::kNative;
  std::optional<Bytes> max_split_size;  // none: unlimited
  Bytes max_non_split_rounding = 20 * kMiB;
  Bytes large_segment_size = 20 * kMiB;
  double garbage_collection_threshold = 0;                                 // 0: off
  std::array<std::int64_t, kRoundupIntervals> roundup_power2_divisions{};  // 0: off
  bool expandable_segments = false;
  std::optional<SegmentReserve> expandable_segments_reserve;
  double per_process_memory_fraction = 1;  // counts only at start
  bool throw_on_cudamalloc_oom = false;
  bool graph_capture_record_stream_reuse = false;  // read, not modelled
  // Host side and locking: no effect on device memory.
  bool release_lock_on_cudamalloc = false;
  bool pinned_use_cuda_host_register = false;
  std::int64_t pinned_num_register_threads = 1;

  std::string text;  // the last text applied
};

// Applies `text` over `settings` as PyTorch does at start and in set_allocator_settings: options
// named in it change; max_split_size, the roundup divisions and the GC threshold fall back to their
// defaults if not named, max_non_split_rounding to the large segment size; the rest stays. What
// PyTorch raises goes to `problems` (all of them, PyTorch stops at the first) and leaves that
// option as it was; what PyTorch warns of goes to `warnings`.
void apply_allocator_conf(std::string_view text, std::string_view source,
                          AllocatorSettings& settings, Problems& problems,
                          std::vector<std::string>& warnings);

// Settings of a process started with `text`.
AllocatorSettings parse_allocator_settings(std::string_view text, std::string_view source,
                                           Problems& problems, std::vector<std::string>& warnings);

}  // namespace oomcast::allocator
