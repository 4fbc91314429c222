// Figures that a log does not print but that follow from what it prints.
#pragma once

#include "sim/logs/engine_log.hpp"

namespace oomcast::logs {

// Adds derived readings, rank by rank, for figures without a printed one:
//   all           total = the one an out-of-memory text names
//   SGLang        state pool = convolution + recurrent state;
//                 available KV = K + V (and further pools of a sliding-window model);
//                 weights = free before - free after loading
//   vLLM          total = requested / utilization
//   TensorRT-LLM  weights = free before - free after the stage `Model`;
//                 tokens = blocks x tokens per block
void derive_figures(EngineRun& run);

}  // namespace oomcast::logs
