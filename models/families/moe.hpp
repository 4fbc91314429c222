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
  bool router_fp32 = false;
  std::int64_t latent = 0;   // routed experts work on a projection this wide; 0: on the hidden
  bool latent_norm = false;  // a norm before the way back
  bool latent_quantisable = true;
  std::int64_t zero_experts = 0;  // the router may choose them, they have no weights (LongCat)
};

// The aliases that publishers use for expert counts and top-k.
std::int64_t read_experts(const Config& config);
std::int64_t read_experts_per_token(const Config& config, std::int64_t experts);

// Router, shared experts, projections into and out of the latent, routed experts.
void add_moe(const ModelSpec& spec, LayerSpec& layer, const MoeStyle& style);
// Only the routed experts.
void add_routed_experts(const ModelSpec& spec, LayerSpec& layer, const MoeStyle& style);

// A list of zeros and ones, one a layer.
std::vector<bool> read_flags(const Config& config, std::string_view key, int layers);

// Dense layers of models that give moe_layer_freq (a step or a list), first_k_dense_replace,
// mlp_only_layers, decoder_sparse_step or mlp_layer_types; true: a mixture of experts.
std::vector<bool> read_moe_layers(const Config& config, int layers);

}  // namespace oomcast::models
