#include "sim/experts/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/core/error.hpp"

namespace oomcast::experts {
namespace {

void check(const ExpertGroup& group) {
  const std::int64_t slots = group.experts + group.redundant;
  if (slots % group.ranks == 0) {
    return;
  }
  const std::int64_t more = group.ranks - slots % group.ranks;
  throw ConfigError(Problem{"command line", "expert parallelism",
                            fmt::format("{} experts and {} redundant ones on {} ranks",
                                        group.experts, group.redundant, group.ranks),
                            "a number of experts, copies included, that divides over the ranks",
                            fmt::format("{} redundant experts would", group.redundant + more)});
}

// Copies of each expert: one, and the redundant ones to whichever copy carries most.
std::vector<std::int64_t> copies_of(const ExpertGroup& group, const std::vector<double>& loads) {
  std::vector<std::int64_t> copies(loads.size(), 1);
  for (std::int64_t i = 0; i < group.redundant; ++i) {
    std::size_t heaviest = 0;
    for (std::size_t expert = 1; expert < loads.size(); ++expert) {
      if (loads[expert] / static_cast<double>(copies[expert]) >
          loads[heaviest] / static_cast<double>(copies[heaviest])) {
        heaviest = expert;
      }
    }
    ++copies[heaviest];
  }
  return copies;
}

struct Slot {
  std::size_t expert = 0;
  double load = 0;
};

std::vector<Slot> slots_of(const std::vector<std::int64_t>& copies,
                           const std::vector<double>& loads) {
  std::vector<Slot> slots;
  for (std::size_t expert = 0; expert < copies.size(); ++expert) {
    for (std::int64_t copy = 0; copy < copies[expert]; ++copy) {
      slots.push_back({expert, loads[expert] / static_cast<double>(copies[expert])});
    }
  }
  return slots;
}

// Heaviest first, each to the least loaded rank that has a slot left.
std::vector<std::size_t> packed(std::vector<Slot>& slots, std::size_t ranks) {
  std::stable_sort(slots.begin(), slots.end(),
                   [](const Slot& left, const Slot& right) { return left.load > right.load; });
  const std::size_t per_rank = slots.size() / ranks;
  std::vector<double> load(ranks, 0);
  std::vector<std::size_t> taken(ranks, 0);
  std::vector<std::size_t> rank_of;
  for (const Slot& slot : slots) {
    std::size_t best = ranks;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (taken[rank] < per_rank && (best == ranks || load[rank] < load[best])) {
        best = rank;
      }
    }
    load[best] += slot.load;
    ++taken[best];
    rank_of.push_back(best);
  }
  return rank_of;
}

std::vector<double> mean_shares(const Routing& routing, const ExpertGroup& group, int layer) {
  std::vector<double> mean(static_cast<std::size_t>(group.experts), 0);
  for (int window = 0; window < routing.windows; ++window) {
    const auto shares = expert_shares(routing, layer, window, group.experts, group.picks);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += shares[i] / routing.windows;
    }
  }
  return mean;
}

// Tokens that pick at least one expert of a rank which gets `copies` of their picks.
double reached(double copies, std::int64_t picks) {
  const auto k = static_cast<double>(picks);
  return std::min(copies, 1 - std::pow(std::max(0.0, 1 - copies / k), k));
}

}  // namespace

std::vector<std::vector<double>> placement(const ExpertGroup& group,
                                           const std::vector<double>& loads) {
  check(group);
  OOMCAST_CHECK(loads.size() == static_cast<std::size_t>(group.experts), "{} loads", loads.size());
  const auto ranks = static_cast<std::size_t>(group.ranks);
  const std::vector<std::int64_t> copies = copies_of(group, loads);
  std::vector<Slot> slots = slots_of(copies, loads);
  std::vector<std::size_t> rank_of(slots.size());
  switch (group.placing) {
    case Placing::kContiguous:
      for (std::size_t i = 0; i < slots.size(); ++i) {
        rank_of[i] = i / (slots.size() / ranks);
      }
      break;
    case Placing::kRoundRobin:
      for (std::size_t i = 0; i < slots.size(); ++i) {
        rank_of[i] = i % ranks;
      }
      break;
    case Placing::kBalanced:
      rank_of = packed(slots, ranks);
      break;
  }
  std::vector<std::vector<double>> parts(ranks, std::vector<double>(loads.size(), 0));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    parts[rank_of[i]][slots[i].expert] += 1.0 / static_cast<double>(copies[slots[i].expert]);
  }
  return parts;
}

const RankLoad& ExpertLoad::worst() const { return ranks[static_cast<std::size_t>(worst_rank())]; }

int ExpertLoad::worst_rank() const {
  const auto worst = std::max_element(
      ranks.begin(), ranks.end(),
      [](const RankLoad& left, const RankLoad& right) { return left.copies < right.copies; });
  return static_cast<int>(worst - ranks.begin());
}

ExpertLoad expert_load(const Routing& routing, const ExpertGroup& group) {
  check(group);
  ExpertLoad out;
  out.even.copies = static_cast<double>(group.picks) / static_cast<double>(group.ranks);
  out.even.tokens = reached(out.even.copies, group.picks);
  if (routing.kind == Routing::Kind::kUniform) {
    out.ranks.assign(static_cast<std::size_t>(group.ranks), out.even);
    return out;
  }
  out.ranks.assign(static_cast<std::size_t>(group.ranks), {});
  for (int layer = 0; layer < group.layers; ++layer) {
    const auto parts = placement(group, mean_shares(routing, group, layer));
    for (int window = 0; window < routing.windows; ++window) {
      const auto shares = expert_shares(routing, layer, window, group.experts, group.picks);
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        const double copies =
            std::inner_product(shares.begin(), shares.end(), parts[rank].begin(), 0.0);
        if (copies > out.ranks[rank].copies) {
          out.ranks[rank] = {copies, reached(copies, group.picks), layer, window};
        }
      }
    }
  }
  return out;
}

}  // namespace oomcast::experts
