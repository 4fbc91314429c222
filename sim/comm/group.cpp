#include "sim/comm/group.hpp"

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/kernels/buffer.hpp"

namespace oomcast::comm {

void check_group(const RankGroup& group) {
  constexpr std::int64_t kMostRanks = 1 << 20;
  ShapeCheck check{"communicator"};
  check.between("ranks", group.ranks, 1, kMostRanks)
      .between("nodes", group.nodes, 1, std::max<std::int64_t>(group.ranks, 1));
  check.raise_if_any();
  check.between("ranks left over on nodes", group.ranks % group.nodes, 0, 0)
      .between("GPUs described", group.gpu == nullptr ? 0 : 1, 1, 1);
  check.raise_if_any();
}

}  // namespace oomcast::comm
