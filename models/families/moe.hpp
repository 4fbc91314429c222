// Mixtures of experts: router, shared experts, and the routed experts stacked in two tensors.
#pragma once

#include "models/families/family.hpp"

namespace oomcast::models {

struct MoeStyle {
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t expert_width = 0;
  std::int64_t shared_width = 0;  // of all shared experts together; 0: none
  bool gated = true;
  bool router_bias = false;
  bool correction_bias = false;  // fp32 vector that balances the routing (noaux_tc)
  bool shared_gate = false;      // one row that weighs the shared expert
  bool expert_bias = false;
};

// The aliases that publishers use for expert counts and top-k.
std::int64_t read_experts(const Config& config);
std::int64_t read_experts_per_token(const Config& config, std::int64_t experts);

void add_moe(const ModelSpec& spec, LayerSpec& layer, const MoeStyle& style);

// Dense layers of models that give first_k_dense_replace, mlp_only_layers, decoder_sparse_step or
// mlp_layer_types; true: a mixture of experts.
std::vector<bool> read_moe_layers(const Config& config, int layers);

}  // namespace oomcast::models
