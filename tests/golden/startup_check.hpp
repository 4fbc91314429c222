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

// What the op graph says of the same run, point by point.
struct PeakPoints {
  int steps = 0;
  int steps_within = 0;  // 2 % or 8 MiB of the recorded peak
  int graphs = 0;
  int graphs_within = 0;  // pool growth: 5 % or 2 MiB
  int tensors = 0;        // of 1 MiB and more, alive at the peak of the profile run
  int tensors_found = 0;  // with the same bytes in ours
  std::vector<std::string> off;
};
PeakPoints check_peaks(const Json& recorded, const models::ModelSpec& model);

}  // namespace oomcast::golden
