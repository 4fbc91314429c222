// CUDA graph memory of one rank: PyTorch's private pool, the capture stream's cuBLAS workspace, and
// the driver's share (facts: vLLM startup 5-8, runtime 11).
#pragma once

#include "sim/core/units.hpp"
#include "sim/engines/vllm/deployment.hpp"

namespace oomcast::vllm {

struct GraphMemory {
  Bytes piecewise_pool;    // private pool after the piecewise captures
  Bytes full_pool;         // its growth by the full decode captures
  Bytes stream_workspace;  // default pool, once
  Bytes driver;            // graphs and their nodes, outside PyTorch
  Bytes estimate;          // what the version's trial capture makes of it

  [[nodiscard]] Bytes total() const {
    return piecewise_pool + full_pool + stream_workspace + driver;
  }
};

GraphMemory graph_memory(const Deployment& deployment, int stage_layers);

}  // namespace oomcast::vllm
