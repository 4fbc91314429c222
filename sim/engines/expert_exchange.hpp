// How the ranks of an expert-parallel group exchange tokens: what the engine set up, the buffers
// that takes, and what reaches the rank whose memory is forecast, the most loaded one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec.hpp"
#include "sim/comm/expert_dispatch.hpp"
#include "sim/core/json.hpp"
#include "sim/experts/placement.hpp"
#include "sim/kernels/buffer.hpp"
#include "sim/opgraph/graph.hpp"

namespace oomcast {

enum class Exchange : std::uint8_t {
  kNone,       // experts of the tensor group: every rank has all tokens already
  kAllGather,  // all tokens of all replicas on every rank
  kSparse,     // a rank gets the tokens that picked its experts
  kBatched,    // a fixed number of slots for each expert and sender, whatever was picked
};

struct ExpertExchange {
  Exchange kind = Exchange::kNone;
  std::string backend;  // as the flag names it
  comm::DispatchShape shape;
  comm::Payload payload = comm::Payload::kBf16;
  std::int64_t senders = 1;  // replicas whose tokens are exchanged; each has those of a step
  experts::Routing routing;
  experts::ExpertLoad load;
  std::vector<Buffer> buffers;  // made once, outside PyTorch

  // Tokens that arrive for each token that one replica has in the step; nothing for kBatched.
  [[nodiscard]] double arriving() const;
  // Rows of the experts' products for the same.
  [[nodiscard]] double routed() const;
  // kBatched: rows of the rank's experts.
  [[nodiscard]] std::int64_t slots() const;

  // What dispatch hands to the experts, `element` bytes a hidden value where it is not quantised.
  [[nodiscard]] std::vector<opgraph::TensorInfo> dispatched(Bytes element) const;
  // A tensor of so many bytes for each token that arrives, or each routed row.
  [[nodiscard]] opgraph::TensorInfo per_arriving(std::string name, std::string formula,
                                                 double bytes,
                                                 Leaf leaf = Leaf::kRuntimeIntermediates) const;
  [[nodiscard]] opgraph::TensorInfo per_routed(std::string name, std::string formula, double bytes,
                                               Leaf leaf = Leaf::kRuntimeIntermediates) const;

  // For plan.json: group, backend, bytes, load by rank.
  [[nodiscard]] OrderedJson json() const;
};

// The model's mixture with the most experts; nullptr without one. `layers`: how many there are.
struct Mixture {
  const models::FfnSpec* ffn = nullptr;
  int layers = 0;
};
Mixture widest_mixture(const models::ModelSpec& model);

}  // namespace oomcast
