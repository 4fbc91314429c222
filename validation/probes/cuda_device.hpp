// A real card.
#pragma once

#include <memory>

#include "validation/schedule/device.hpp"

namespace oomcast::validation {

// The card of an index, as CUDA counts; makes its context. Throws Unsupported with the reason: no
// GPU, a driver older than the runtime, no card of that index.
std::unique_ptr<Device> make_cuda_device(int index);

}  // namespace oomcast::validation
