// Which rank holds which expert, and how many tokens that brings it.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/experts/routing.hpp"

namespace oomcast::experts {

enum class Placing : std::uint8_t {
  kContiguous,  // the first E / n experts on rank 0, and so on
  kRoundRobin,
  kBalanced,  // EPLB: the most loaded experts are copied, slots are given to the least loaded rank
};

struct ExpertGroup {
  std::int64_t experts = 1;    // of a layer, without copies
  std::int64_t redundant = 0;  // copies over all ranks
  std::int64_t picks = 1;      // experts a token
  std::int64_t ranks = 1;
  int layers = 1;  // with experts
  Placing placing = Placing::kContiguous;
};

// The share of each expert's tokens that each rank computes: a row a rank, (experts) wide, columns
// sum to 1. `loads`: what placing goes by, one an expert. Copies of an expert share its tokens
// evenly. Throws ConfigError if experts and copies do not divide over the ranks.
std::vector<std::vector<double>> placement(const ExpertGroup& group,
                                           const std::vector<double>& loads);

// What reaches one rank for each token that the group dispatches, in its heaviest layer.
struct RankLoad {
  double copies = 0;  // routed rows: a token counts once for each of the rank's experts it picked
  double tokens = 0;  // tokens with at least one such expert
  int layer = 0;
  int window = 0;
};

struct ExpertLoad {
  std::vector<RankLoad> ranks;
  RankLoad even;  // if all experts were picked alike

  [[nodiscard]] const RankLoad& worst() const;
  [[nodiscard]] int worst_rank() const;
  // Of the worst rank over the even load.
  [[nodiscard]] double imbalance() const { return worst().copies / even.copies; }
};

// Over all layers and windows. A balanced placement goes by each layer's mean over the windows, as
// EPLB does by its history: what rotates faster than it rebalances stays uneven. Tokens are counted
// as if a token's picks were drawn one by one from the rank's share.
ExpertLoad expert_load(const Routing& routing, const ExpertGroup& group);

}  // namespace oomcast::experts
