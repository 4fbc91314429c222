#include "sim/kernels/torch_sort.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "sim/kernels/buffer.hpp"
#include "sim/kernels/cub.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kIndexBytes = 8;

// One radix sort after the other, each row with storage of its own.
void sort_row_by_row(CallList& calls, RowShape batch, std::int64_t key_bytes,
                     const models::GpuSpec& gpu) {
  const std::size_t indices = calls.allocate(batch.cols * kIndexBytes);
  const std::int64_t storage =
      radix_sort_storage({batch.cols, key_bytes, kIndexBytes, 8 * key_bytes}, gpu);
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    calls.allocate_and_free(storage);
  }
  calls.free(indices);
}

// All rows at once by value, then stably by row number.
void sort_by_value_then_row(CallList& calls, RowShape batch, std::int64_t key_bytes,
                            const models::GpuSpec& gpu) {
  constexpr std::int64_t kPairBytes = 8;  // row and column, int32 each
  const std::int64_t items = batch.rows * batch.cols;
  const std::size_t pairs = calls.allocate(items * kPairBytes);
  const std::size_t sorted_pairs = calls.allocate(items * kPairBytes);
  const std::size_t keys = calls.allocate(items * key_bytes);
  calls.allocate_and_free(radix_sort_storage({items, key_bytes, kPairBytes, 8 * key_bytes}, gpu));
  calls.free(keys);
  const auto row_bits = std::bit_width(static_cast<std::uint64_t>(batch.rows - 1));
  calls.allocate_and_free(
      radix_sort_storage({items, kPairBytes, 0, static_cast<std::int64_t>(row_bits)}, gpu));
  calls.free(sorted_pairs);
  calls.free(pairs);
}

void sort_by_segments(CallList& calls, RowShape batch, std::int64_t key_bytes) {
  const std::int64_t items = batch.rows * batch.cols;
  const std::size_t indices = calls.allocate(items * kIndexBytes);
  calls.allocate_and_free(
      segmented_radix_sort_storage({items, key_bytes, kIndexBytes, 8 * key_bytes}));
  calls.free(indices);
}

// Measured by PyTorch's authors (pull request 74267).
bool selects_in_several_blocks(RowShape shape) {
  struct Row {
    std::int64_t most_rows;
    std::int64_t least_cols;
  };
  constexpr Row kRows[] = {{20, 20000}, {40, 10000}, {80, 8000},
                           {199, 5000}, {799, 3000}, {4000, 800}};
  for (const Row& row : kRows) {
    if (shape.rows <= row.most_rows) {
      return shape.cols >= row.least_cols;
    }
  }
  return shape.cols >= 400;
}

void selection_scratch(CallList& calls, RowShape shape, const models::GpuSpec& gpu) {
  constexpr std::int64_t kThreads = 256;
  constexpr std::int64_t kDigits = 256;
  constexpr std::int64_t kRegistersPerSm = 65536;
  constexpr std::int64_t kRegistersPerThread = 40;
  constexpr std::int64_t kBlocksPerSm = kRegistersPerSm / (kRegistersPerThread * kThreads);
  const std::int64_t wave = gpu.sm_count * kBlocksPerSm * kThreads;
  const std::int64_t items_per_thread =
      std::clamp<std::int64_t>(div_ceil(shape.rows * shape.cols, wave), 4, 64);
  const std::int64_t blocks = shape.rows * div_ceil(shape.cols, items_per_thread * kThreads);
  const std::size_t kth_values = calls.allocate(shape.rows * 4);
  const std::size_t ks_to_find = calls.allocate(shape.rows * 2 * 4);
  const std::size_t desired = calls.allocate(shape.rows * 2 * 4);
  const std::size_t counts = calls.allocate(blocks * kDigits * 2);
  const std::size_t digit_sums = calls.allocate(shape.rows * kDigits * 4);
  const std::size_t within_k = calls.allocate(blocks * 4);
  const std::size_t kth_counts = calls.allocate(blocks * 4);
  const std::int64_t storage = scan_by_key_storage(blocks, gpu);
  calls.allocate_and_free(storage);
  calls.allocate_and_free(storage);
  for (const std::size_t made :
       {kth_counts, within_k, digit_sums, counts, desired, ks_to_find, kth_values}) {
    calls.free(made);
  }
}

constexpr std::int64_t kSmallSortColumns = 4096;

}  // namespace

void sort_scratch(CallList& calls, RowShape shape, std::int64_t key_bytes,
                  const models::GpuSpec& gpu) {
  if (shape.cols <= kSmallSortColumns) {
    // One row of column numbers, copied into all rows of the indices.
    calls.allocate_and_free(shape.cols * kIndexBytes);
    return;
  }
  constexpr std::int64_t kMostItems = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t kColumnsThatFillTheGpu = 1'000'000;
  constexpr std::int64_t kRowsForSegments = 128;
  const std::int64_t batch_rows = std::max<std::int64_t>(kMostItems / shape.cols, 1);
  for (std::int64_t done = 0; done < shape.rows; done += batch_rows) {
    const RowShape batch{std::min(batch_rows, shape.rows - done), shape.cols};
    if (batch.rows == 1 || batch.cols >= kColumnsThatFillTheGpu) {
      sort_row_by_row(calls, batch, key_bytes, gpu);
    } else if (batch.rows < kRowsForSegments) {
      sort_by_value_then_row(calls, batch, key_bytes, gpu);
    } else {
      sort_by_segments(calls, batch, key_bytes);
    }
  }
}

void topk_calls(CallList& calls, RowShape shape, std::int64_t k, const models::GpuSpec& gpu) {
  constexpr std::int64_t kValueBytes = 4;
  calls.allocate(product(shape.rows, k, kValueBytes));
  calls.allocate(product(shape.rows, k, kIndexBytes));
  if (selects_in_several_blocks(shape)) {
    selection_scratch(calls, shape, gpu);
  }
  if (k > kSmallSortColumns) {
    const std::size_t sorted_indices = calls.allocate(product(shape.rows, k, kIndexBytes));
    const std::size_t sorted_values = calls.allocate(product(shape.rows, k, kValueBytes));
    sort_scratch(calls, {shape.rows, k}, kValueBytes, gpu);
    calls.allocate_and_free(product(shape.rows, k, kIndexBytes));  // gathered indices
    calls.free(sorted_values);
    calls.free(sorted_indices);
  }
}

}  // namespace oomcast::kernels
