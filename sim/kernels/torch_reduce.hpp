// What PyTorch's CUDA reductions along the columns of a contiguous [rows, cols] input allocate
// beside their outputs (2.15: native/cuda/Reduce.cuh).
#pragma once

#include <cstdint>

#include "models/gpu.hpp"
#include "sim/kernels/call_list.hpp"
#include "sim/kernels/torch_sort.hpp"

namespace oomcast::kernels {

struct Reduction {
  std::int64_t input_bytes = 4;   // an element of the input
  std::int64_t state_bytes = 4;   // what a thread carries: a value, or value and index
  std::int64_t output_bytes = 4;  // an element of the first output
  // The state converts to an output element, so partial results can wait in the output.
  bool accumulates_in_output = true;
};

// Where a row is long and rows are few, several blocks share one: a partial state a block and a
// semaphore an output. Inputs beyond 2^31 bytes are halved until they can be indexed with 32 bits.
void reduction_scratch(CallList& calls, RowShape shape, const Reduction& reduction,
                       const models::GpuSpec& gpu);

}  // namespace oomcast::kernels
