// What an engine's log calls "model weights": the bytes PyTorch's allocator counts as allocated
// while a rank creates its tensors.
//
// That is more than the tensors' own bytes. The allocator counts whole blocks, and a block keeps a
// remainder that it may not split off: up to 1 MiB in general, and everything in a block of
// max_split_size or more when that is set, as vLLM does while loading from 0.22 on (20 MiB).
// Example: the table of a rope is first computed in fp32; the freed 64 MiB block then serves a 48
// MiB projection whole, which is why Llama-3.1-8B weighs 16 MiB more in 0.33 than in 0.19. Rules:
// PyTorch CUDACachingAllocator (facts "runtime" 1); one stream, nothing in the pools before.
#pragma once

#include "models/weights.hpp"
#include "sim/core/units.hpp"

namespace oomcast::models {

struct LoadRules {
  Bytes max_split_size;  // 0: unlimited, PyTorch's default
};

// Sum of the blocks that hold the rank's tensors once all are made.
Bytes loaded_bytes(const RankWeights& weights, const LoadRules& rules = {});

}  // namespace oomcast::models
