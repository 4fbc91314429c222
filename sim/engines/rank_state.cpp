#include "sim/engines/rank_state.hpp"

namespace oomcast {

Bytes shown_at_ready(const RankState& rank, Leaf leaf) {
  switch (leaf) {
    case Leaf::kRuntimeActivations:
    case Leaf::kRuntimeIntermediates:
    case Leaf::kRuntimeLogits:
    case Leaf::kWorkspaceAttention:
    case Leaf::kWorkspaceGemm:
    case Leaf::kWorkspaceMoe:
      return rank.peaks.of(leaf).bytes;
    default:
      return rank.memory.ledger().device_by_leaf()[index_of(leaf)];
  }
}

}  // namespace oomcast
