// How SGLang's ranks exchange tokens with experts (--moe-a2a-backend). Rules: facts pages SGLang 9
// and runtime 6, and sglang/srt/layers/moe/token_dispatcher.
#pragma once

#include <string>

#include "sim/core/error.hpp"
#include "sim/engines/sglang/deployment.hpp"

namespace oomcast::sglang {

// --moe-a2a-backend, or what older flags for it say; "none" without experts to exchange.
std::string dispatch_backend(const Deployment& deployment);

// Of a deployment whose parallelism and captured sizes are settled: `exchange`, `batched_decodes`.
// What cannot be is added to `problems`.
void settle_expert_exchange(Deployment& deployment, Problems& problems);

}  // namespace oomcast::sglang
