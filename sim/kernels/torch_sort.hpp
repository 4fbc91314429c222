// What PyTorch's CUDA sort and top-k allocate beside their outputs (2.15: native/cuda/Sort.cpp,
// SortStable.cu, TensorTopK.cu). Inputs are contiguous [rows, cols], sorted along the columns; at
// least 1 x 1 and at most 2^40 elements, which operator_calls() checks.
#pragma once

#include <cstdint>

#include "models/gpu.hpp"
#include "sim/kernels/call_list.hpp"

namespace oomcast::kernels {

struct RowShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// Scratch of a sort with int64 indices; outputs exist. Rows of up to 4096 take an in-place sort;
// one row, or rows of a million and more, are sorted one by one; fewer than 128 rows by value and
// then by row; others by segments. More than 2^31 - 1 elements are sorted in batches of rows.
void sort_scratch(CallList& calls, RowShape shape, std::int64_t key_bytes,
                  const models::GpuSpec& gpu);

// topk of fp32: values and indices, then the scratch of the selection if it runs in several blocks
// a row (a rule of rows and columns) and of sorting more than 4096 results.
void topk_calls(CallList& calls, RowShape shape, std::int64_t k, const models::GpuSpec& gpu);

}  // namespace oomcast::kernels
