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

// A table counted on another model says nothing of this one. Its widths expert_shares() checks.
void check_table(const Routing& routing, const ExpertGroup& group) {
  if (routing.kind != Routing::Kind::kTable) {
    return;
  }
  Problems problems;
  const auto complain = [&](const std::string& found, const std::string& expected) {
    problems.add({"command line", "expert routing", found, expected, ""});
  };
  if (routing.table.size() != 1 && routing.table.size() != static_cast<std::size_t>(group.layers)) {
    complain(fmt::format("{} rows", routing.table.size()),
             fmt::format("{}, one a layer with experts, or one for all", group.layers));
  }
  for (std::size_t row = 0; row < routing.table.size(); ++row) {
    const std::vector<double>& counts = routing.table[row];
    const auto picked =
        std::count_if(counts.begin(), counts.end(), [](double count) { return count > 0; });
    if (picked < group.picks) {
      complain(fmt::format("{} experts with a count in row {}", picked, row),
               fmt::format("at least {}, as many as a token picks", group.picks));
    }
  }
  problems.raise_if_any();
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

// A row a window.
std::vector<std::vector<double>> shares_of_windows(const Routing& routing, const ExpertGroup& group,
                                                   int layer) {
  std::vector<std::vector<double>> rows;
  for (int window = 0; window < routing.windows; ++window) {
    rows.push_back(expert_shares(routing, layer, window, group.experts, group.picks));
  }
  return rows;
}

std::vector<double> mean_of(const std::vector<std::vector<double>>& rows) {
  std::vector<double> mean(rows.front().size(), 0);
  for (const std::vector<double>& row : rows) {
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += row[i] / static_cast<double>(rows.size());
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

namespace {

// Which rank computes which share of an expert's tokens, a copy an entry.
struct Part {
  std::size_t rank = 0;
  std::size_t expert = 0;
  double share = 0;
};

std::vector<Part> parts_of(const ExpertGroup& group, const std::vector<double>& loads) {
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
  std::vector<Part> parts;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    parts.push_back(
        {rank_of[i], slots[i].expert, 1.0 / static_cast<double>(copies[slots[i].expert])});
  }
  return parts;
}

}  // namespace

std::vector<std::vector<double>> placement(const ExpertGroup& group,
                                           const std::vector<double>& loads) {
  std::vector<std::vector<double>> rows(static_cast<std::size_t>(group.ranks),
                                        std::vector<double>(loads.size(), 0));
  for (const Part& part : parts_of(group, loads)) {
    rows[part.rank][part.expert] += part.share;
  }
  return rows;
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
  check_table(routing, group);
  ExpertLoad out;
  out.even.copies = static_cast<double>(group.picks) / static_cast<double>(group.ranks);
  out.even.tokens = reached(out.even.copies, group.picks);
  if (routing.kind == Routing::Kind::kUniform) {
    out.ranks.assign(static_cast<std::size_t>(group.ranks), out.even);
    return out;
  }
  out.ranks.assign(static_cast<std::size_t>(group.ranks), {});
  for (int layer = 0; layer < group.layers; ++layer) {
    const auto windows = shares_of_windows(routing, group, layer);
    const std::vector<Part> parts = parts_of(group, mean_of(windows));
    for (std::size_t window = 0; window < windows.size(); ++window) {
      std::vector<double> copies(out.ranks.size(), 0);
      for (const Part& part : parts) {
        copies[part.rank] += windows[window][part.expert] * part.share;
      }
      for (std::size_t rank = 0; rank < copies.size(); ++rank) {
        if (copies[rank] > out.ranks[rank].copies) {
          out.ranks[rank] = {copies[rank], reached(copies[rank], group.picks), layer,
                             static_cast<int>(window)};
        }
      }
    }
  }
  return out;
}

}  // namespace oomcast::experts
