// Memory of a CUDA context and of what is loaded into it, outside PyTorch. Source: facts page
// `runtime` sections 2.1 and 3; measured cards, modules and driver branches:
// models/kernels/context.json. Only few cards were measured; each figure carries its range.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpu.hpp"
#include "sim/kernels/buffer.hpp"

namespace oomcast::comm {

// A figure with the range it may lie in.
struct ContextPart {
  Buffer buffer;
  Bytes low;
  Bytes high;
  std::string source;
};

struct ContextUse {
  // Branch of the driver, 0 if unknown: newer branches take more.
  int driver_branch = 0;
  // Modules whose kernels were launched at least once, by the names of the data file.
  std::vector<std::string> modules;
  // Kernels that spill: local memory of one thread, kept for all resident threads.
  Bytes stack_per_thread;
};

// The context of one process on the GPU: a measurement of the card, else 8 MiB + SMs x threads x
// 1.94 KiB; code of modules (loaded lazily); local memory. Throws ConfigError for an unknown
// module, with the nearest name.
std::vector<ContextPart> context_parts(const models::GpuSpec& gpu, const ContextUse& use);

std::vector<std::string> context_modules();

}  // namespace oomcast::comm
