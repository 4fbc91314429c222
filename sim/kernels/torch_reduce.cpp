#include "sim/kernels/torch_reduce.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "sim/core/units.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kMostThreads = 512;

std::int64_t last_power_of_two(std::int64_t value) {
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(value)));
}

struct LaunchShape {
  std::int64_t blocks_per_output = 1;
  std::int64_t grid = 1;
};

// Loads are also vectorised in the original, which narrows blocks only for rows far too short to
// be shared.
LaunchShape launch_shape(RowShape shape, const models::GpuSpec& gpu) {
  constexpr std::int64_t kWarp = 32;
  constexpr std::int64_t kLeastValues = 16;
  constexpr std::int64_t kMostValues = 256;
  const std::int64_t cols = std::min(last_power_of_two(shape.cols), kMostThreads);
  const std::int64_t rows = std::min(last_power_of_two(shape.rows), kMostThreads);
  const std::int64_t height = std::min(rows, kMostThreads / std::min(cols, kWarp));
  const std::int64_t width = std::min(cols, kMostThreads / height);
  std::int64_t values_per_thread = div_ceil(shape.cols, width);
  LaunchShape launch;
  if (values_per_thread < std::min(height * kLeastValues, kMostValues)) {
    launch.grid = div_ceil(shape.rows, height);
    return launch;
  }
  values_per_thread = div_ceil(shape.cols, width * height);
  launch.grid = shape.rows;
  const std::int64_t blocks_per_sm = gpu.threads_per_sm / (width * height);
  const std::int64_t target = gpu.sm_count * blocks_per_sm;
  if (values_per_thread >= kMostValues && launch.grid <= target) {
    launch.blocks_per_output =
        std::max(std::min(div_ceil(target, launch.grid), div_ceil(values_per_thread, kLeastValues)),
                 div_ceil(values_per_thread, kMostValues));
  }
  return launch;
}

bool fits_32_bit_indices(RowShape shape, std::int64_t input_bytes) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return shape.rows * shape.cols <= kMost &&
         1 + (shape.rows * shape.cols - 1) * input_bytes <= kMost;
}

void reduce(CallList& calls, RowShape shape, const Reduction& reduction,
            const models::GpuSpec& gpu) {
  if (!fits_32_bit_indices(shape, reduction.input_bytes)) {
    RowShape first = shape;
    RowShape second = shape;
    if (shape.rows > 1) {
      first.rows = shape.rows / 2;
      second.rows = shape.rows - first.rows;
    } else {
      first.cols = shape.cols / 2;
      second.cols = shape.cols - first.cols;
    }
    reduce(calls, first, reduction, gpu);
    reduce(calls, second, reduction, gpu);
    return;
  }
  const LaunchShape launch = launch_shape(shape, gpu);
  if (launch.blocks_per_output > 1) {
    constexpr std::int64_t kSemaphoreBytes = 4;
    const std::size_t partial =
        calls.allocate(reduction.state_bytes * shape.rows * launch.blocks_per_output);
    const std::size_t semaphores = calls.allocate(kSemaphoreBytes * launch.grid);
    calls.free(semaphores);
    calls.free(partial);
  }
}

}  // namespace

void reduction_scratch(CallList& calls, RowShape shape, const Reduction& reduction,
                       const models::GpuSpec& gpu) {
  const bool waits_outside = !reduction.accumulates_in_output &&
                             reduction.state_bytes > reduction.output_bytes &&
                             !fits_32_bit_indices(shape, reduction.input_bytes);
  if (!waits_outside) {
    reduce(calls, shape, reduction, gpu);
    return;
  }
  const std::size_t states = calls.allocate(shape.rows * reduction.state_bytes);
  reduce(calls, shape, reduction, gpu);
  calls.free(states);
}

}  // namespace oomcast::kernels
