// A group of ranks that communicate, as one of them sees it.
#pragma once

#include <cstdint>

#include "models/gpu.hpp"

namespace oomcast::comm {

enum class Link : std::uint8_t {
  kNvSwitch,  // every pair at full speed; multicast from compute capability 9
  kNvLink,    // direct links
  kPcie,
};

struct RankGroup {
  std::int64_t ranks = 1;  // of the group
  std::int64_t nodes = 1;  // they are spread over, evenly
  Link link = Link::kNvSwitch;
  const models::GpuSpec* gpu = nullptr;
};

// GPUs of one machine.
inline constexpr std::int64_t kCardsPerNode = 8;

// NVLink of at least this bandwidth, in bytes a second, comes with the board. Smaller ones are
// bridges between pairs that most machines lack (RTX 3090, A6000, A40, A30), so PCIe is assumed.
inline constexpr double kBoardNvLink = 300e9;
inline bool has_board_nvlink(const models::GpuSpec& gpu) {
  return gpu.nvlink_bandwidth >= kBoardNvLink;
}

// Ranks on cards of one node; `gpu` must outlive the group.
inline RankGroup group_on_node(const models::GpuSpec& gpu, std::int64_t ranks) {
  return {ranks, 1, has_board_nvlink(gpu) ? Link::kNvSwitch : Link::kPcie, &gpu};
}

// Throws ConfigError for a group that cannot be: no GPU, more nodes than ranks, ranks that do not
// divide over the nodes.
void check_group(const RankGroup& group);

// Ranks of the group on one node.
constexpr std::int64_t local_ranks(const RankGroup& group) { return group.ranks / group.nodes; }

}  // namespace oomcast::comm
