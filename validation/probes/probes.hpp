// One function a probe: one repetition, leaving nothing allocated. Each throws OutOfMemory,
// Unsupported or DeviceFailure. What they measure and stand for: validation/README.md.
#pragma once

#include "validation/schedule/device.hpp"

namespace oomcast::validation {

Values context_probe(const Settings& settings);  // in a process of its own
Values cublas_probe(const Settings& settings);   // in a process of its own
Values cublaslt_probe(const Settings& settings);
Values malloc_probe(const Settings& settings);
Values vmm_probe(const Settings& settings);
Values pinned_probe(const Settings& settings);
Values peer_probe(const Settings& settings);
Values graph_probe(const Settings& settings);
Values graph_pool_probe(const Settings& settings);
Values decode_attention_probe(const Settings& settings);
Values prefill_attention_probe(const Settings& settings);
Values permute_probe(const Settings& settings);
Values grouped_gemm_probe(const Settings& settings);
Values quantise_probe(const Settings& settings);
Values hbm_probe(const Settings& settings);
Values gemm_probe(const Settings& settings);
Values dispatch_probe(const Settings& settings);
Values transfer_probe(const Settings& settings);
Values nccl_probe(const Settings& settings);

}  // namespace oomcast::validation
