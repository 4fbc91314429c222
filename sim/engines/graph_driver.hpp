// Driver memory of instantiated CUDA graphs: what a graph takes, and what each of its kernel nodes
// (models/kernels/cuda_graphs.json has sizes, counts, their sources and what they were checked on).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/gpu.hpp"
#include "models/weights.hpp"
#include "sim/comm/all_reduce.hpp"
#include "sim/core/units.hpp"
#include "sim/core/version.hpp"

namespace oomcast {

struct GraphCosts {
  Bytes executable;  // of a graph besides its nodes
  Bytes node;
  Bytes nccl_sum;  // of a sum over ranks by NCCL, besides its node

  // Kernel nodes of a layer.
  std::int64_t layer = 0;
  std::int64_t attention = 0;  // of these, of the attention call
  std::int64_t mixture = 0;
  std::int64_t shared_expert = 0;
  std::int64_t sum = 0;
  std::int64_t latent = 0;
  std::int64_t indexer = 0;
  std::int64_t state = 0;
  std::int64_t float_input = 0;
  std::int64_t integer_input = 0;
};

// Of this driver; without one, of drivers from 550 on. Adds to `provenance` what each value is and
// how well it is known. Throws ConfigError where the file, or the user's in its place, is wrong.
GraphCosts graph_costs(const std::optional<Version>& driver, std::vector<std::string>& provenance);

// Sums over tensor-parallel ranks in each layer: after attention, after the MLP or experts.
struct LayerSums {
  std::int64_t count = 0;
  bool by_nccl = false;  // else the engine's own kernel makes them
};
LayerSums layer_sums(int tp, bool by_nccl);
// By the engine's own kernel where that is on and fits the card's links.
LayerSums layer_sums(const models::GpuSpec& gpu, int tp, const comm::EngineVersion& engine,
                     bool custom_all_reduce);

// A forward pass of `layers`, captured in one graph, or in pieces before, between and after its
// attention calls. Not rounded to the driver's unit.
Bytes whole_graph(const GraphCosts& costs, const models::ModelSpec& model,
                  models::LayerRange layers, LayerSums sums);
Bytes graph_pieces(const GraphCosts& costs, const models::ModelSpec& model,
                   models::LayerRange layers, LayerSums sums);

}  // namespace oomcast
