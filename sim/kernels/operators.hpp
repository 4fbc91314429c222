// PyTorch's CUDA operators (2.15, CUDA 13.2) by name: the calls of the caching allocator that one
// call of the operator makes, by rule.
//
// Names and shapes are those of the recordings of the real operators: the main input is [rows,
// cols], fp32 unless the name says otherwise. None of these operators makes a workspace at its
// first call that it keeps; matrix products do (gemm.hpp).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/gpu.hpp"
#include "sim/kernels/call_list.hpp"
#include "sim/kernels/torch_sort.hpp"

namespace oomcast::kernels {

// Sizes asked and given back, in order. What is never given back is the operator's output.
// "topk(K)" takes any K up to cols. Throws ConfigError for an unknown name (with the nearest), a
// shape below 1 x 1 or of more than 2^40 elements, rows too long to sort, or K beyond the row.
std::vector<AllocatorCall> operator_calls(std::string_view name, RowShape shape,
                                          const models::GpuSpec& gpu);

std::vector<std::string> operator_names();

}  // namespace oomcast::kernels
