// The largest tensors of a forward pass, at its highest moment: inside the widest feed-forward
// layer, or its attention. Lifetimes as PyTorch code without aliasing has them; the engine's own
// are not documented.
#pragma once

#include <vector>

#include "sim/engines/trtllm/deployment.hpp"
#include "sim/opgraph/program.hpp"

namespace oomcast::trtllm {

// `tokens` in one step, `rows` of them sampled; none on stages before the last.
std::vector<opgraph::LiveTensor> forward_peak(const Deployment& deployment, int stage,
                                              std::int64_t tokens, std::int64_t rows);

}  // namespace oomcast::trtllm
