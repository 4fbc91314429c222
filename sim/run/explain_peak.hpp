// The peak of the profile run, tensor by tensor: the op at which it stands, who lives there, by
// what formula, and what the allocator makes of it (`plan --explain-peak`).
#pragma once

#include "sim/core/json.hpp"
#include "sim/run/plan.hpp"

namespace oomcast {

// One entry a pipeline stage:
//   {"rank":0,"tokens":T,"rows":R,
//    "moments":[{"of":"forward pass"|"sampler","op":"…","bytes":N,"tensors":[{"name","scope",
//                "formula","class","bytes"}]}],          the higher one first
//    "tensors_bytes":N,    no allocator can go below
//    "blocks_bytes":N,     what PyTorch's allocator counts at its highest
//    "live_ranges":["…"]}  a row of text a tensor, over the ops of the step
OrderedJson explain_peak_json(const Plan& plan);

}  // namespace oomcast
