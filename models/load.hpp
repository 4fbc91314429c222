// The calls to PyTorch's allocator while a rank creates its tensors, in order. What they cost in
// blocks is the allocator's matter (sim/allocator): the engines' "model weights" counts blocks, and
// a block keeps a remainder that may not be split off.
#pragma once

#include <cstdint>
#include <vector>

#include "models/weights.hpp"
#include "sim/core/units.hpp"

namespace oomcast::models {

struct LoadCall {
  enum class Kind : std::uint8_t { kAllocate, kFree };
  Kind kind = Kind::kAllocate;
  std::uint32_t tensor = 0;  // which one: numbers count the allocations from 0
  Bytes bytes;               // as requested
  WeightLeaf leaf = WeightLeaf::kWeights;
  // Bytes of what the first forward pass replaces it with; 0: it stays.
  Bytes converted_at_first_use = {};
  // All tensors are made; from here on kernels' own layouts replace some.
  bool begins_conversion = false;
};

// The table of a rope is computed in fp32 (angles, cosines, sines, both side by side; where cosines
// and sines are scaled, the plain ones lie beside them) and then converted; what the computation
// leaves free serves the tensors that follow.
// Example: the freed 64 MiB of Llama-3.1's table serve a 48 MiB projection whole when blocks of 20
// MiB and more are not split, as vLLM has it while loading from 0.22 on: 16 MiB more "weights".
std::vector<LoadCall> load_sequence(const RankWeights& weights);

}  // namespace oomcast::models
