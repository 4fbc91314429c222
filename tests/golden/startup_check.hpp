// One recorded startup of vLLM against ours, field by field.
//
// Real in a recording is everything PyTorch allocates; context, NCCL and driver memory are
// stand-ins, so ours are set to what the stand-in had (all of it in use before the start, none
// after).
#pragma once

#include <string>
#include <vector>

#include "models/spec.hpp"
#include "sim/core/json.hpp"

namespace oomcast::golden {

// "FIELD expected X got Y" for every field outside its tolerance; empty: matched.
//   weights                0.1 % or 4 MiB
//   activation peak        2 % or 8 MiB
//   memory for KV cache    0.3 %
//   memory at each phase   0.2 % or 8 MiB
//   groups, page, block size, blocks, tokens, concurrency: exact, fed the recorded KV memory
// A deployment that is refused gives one entry with the reason.
std::vector<std::string> check_startup(const Json& recorded, const models::ModelSpec& model);

}  // namespace oomcast::golden
