// Recorded calls of the caching allocator by PyTorch's CUDA operators against ours.
#pragma once

#include <string>
#include <vector>

#include "models/gpu.hpp"
#include "sim/core/json.hpp"

namespace oomcast::golden {

// The GPU that a recording's first line describes ("... sm_90, 132 SMs"); an H100 where it is
// silent.
models::GpuSpec recorded_gpu(const Json& header);

struct OperatorResult {
  std::vector<std::string> off;  // "FIELD expected X got Y"; empty: matched
  bool exact_left_and_peak = false;
};

// Sizes and order must be equal. `left` and `peak` follow from replaying the calls through the
// caching allocator from an empty cache; the recording had its inputs around, so that each live
// block may have kept up to 1 MiB that was not split off.
OperatorResult check_operator(const Json& recorded, const models::GpuSpec& gpu);

}  // namespace oomcast::golden
