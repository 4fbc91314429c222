// What the attention sources share.
#pragma once

#include "sim/kernels/attention.hpp"

namespace oomcast::kernels {

// Throws ConfigError naming every extent that cannot be.
void check_batch(const char* kernel, const AttentionBatch& batch);

}  // namespace oomcast::kernels
