// One recorded startup of SGLang against ours, field by field.
//
// Real in a recording is everything PyTorch allocates; context, NCCL and driver memory are
// stand-ins, so ours are set to what the stand-in had.
#pragma once

#include <string>
#include <vector>

#include "models/spec.hpp"
#include "sim/core/json.hpp"
#include "tests/golden/startup_check.hpp"

namespace oomcast::golden {

bool is_sglang_startup(const Json& recorded);

// "FIELD expected X got Y" for every field outside its tolerance; empty: matched.
//   resolved settings                         exact
//   weights                                   0.1 % or 4 MiB
//   tokens, windows, state slots, requests    exact, fed the free memory at sizing; 0.3 % on their
//                                             own
//   K, V, recurrent state                     0.1 % or 4 MiB, fed
//   memory at each phase                      0.2 % or 8 MiB
//   growth of the graphs' pool                5 % or 2 MiB, prefills and decodes
// A deployment that is refused gives one entry with the reason.
std::vector<std::string> check_sglang_startup(const Json& recorded, const models::ModelSpec& model);

// Peaks of recorded steps of the event loop against those of serving: sampled ones, and greedy ones
// whose forward pass is the highest. Only `steps` and `off` are filled.
PeakPoints check_sglang_steps(const Json& recorded, const models::ModelSpec& model);

}  // namespace oomcast::golden
