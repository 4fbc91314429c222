// What the sources of the experts share.
#pragma once

#include "sim/kernels/moe.hpp"

namespace oomcast::kernels {

// n = M x k.
std::int64_t routed_rows(const ExpertShape& shape);
// Throws ConfigError naming every extent that cannot be.
void check_experts(const char* kernel, const ExpertShape& shape);

}  // namespace oomcast::kernels
