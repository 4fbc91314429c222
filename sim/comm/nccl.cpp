#include "sim/comm/nccl.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/kernels/preset.hpp"

namespace oomcast::comm {
namespace {

constexpr std::int64_t kMostChannels = 64;
constexpr std::int64_t kHeaderBytes = 4096;  // of ncclSendMem and ncclRecvMem
constexpr std::int64_t kSteps = 8;
constexpr std::string_view kFile = "kernels/nccl.json";

std::string_view link_name(Link link) {
  switch (link) {
    case Link::kNvSwitch:
      return "nvswitch";
    case Link::kNvLink:
      return "nvlink";
    case Link::kPcie:
      break;
  }
  return "pcie";
}

std::int64_t count_of(const RankGroup& group, const std::string& name, const Version& version) {
  return kernels::preset_count({kFile, name, version, group.gpu}).value_or(0);
}

// Twice the NVLinks of the card: NCCL divides the path's bandwidth by that of a link.
std::int64_t link_channels(const RankGroup& group) {
  constexpr std::int64_t kPcieChannels = 2;
  if (group.link == Link::kPcie || group.gpu->nvlink_bandwidth <= 0) {
    return kPcieChannels;
  }
  const double one_link = group.gpu->compute_major >= 10 ? 100e9 : 50e9;  // both directions
  return 2 * std::max<std::int64_t>(
                 static_cast<std::int64_t>(group.gpu->nvlink_bandwidth / one_link), 1);
}

std::int64_t granules(std::int64_t bytes, const NcclSettings& settings) {
  return align_up(bytes, settings.granule);
}

std::int64_t protocol_bytes(const NcclSettings& settings) {
  return settings.ll_bytes + settings.ll128_bytes;
}

Buffer driver(std::string_view name, std::string formula, Bytes bytes,
              Backing backing = Backing::kDriver) {
  return {name, std::move(formula), bytes, Lifetime::kPersistent, backing};
}

void check_settings(const NcclSettings& settings, const NcclChannels& channels,
                    const RankGroup& group, const NcclUse& use) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 34;
  ShapeCheck{"NCCL"}
      .between("NCCL_BUFFSIZE", settings.buffer_bytes, 0, kMostBytes)
      .between("NCCL_LL_BUFFSIZE", settings.ll_bytes, 0, kMostBytes)
      .between("NCCL_LL128_BUFFSIZE", settings.ll128_bytes, 0, kMostBytes)
      .between("allocation granule", settings.granule, 1, kMostBytes)
      .between("collective channels", channels.collective, 1, kMostChannels)
      .between("peer-to-peer channels", channels.peer_to_peer, 1, kMostChannels)
      .between("channels per peer", channels.per_peer, 1, kMostChannels)
      .between("NVLS channels", channels.nvls, 0, kMostChannels)
      .between("NVLS chunk", channels.nvls_chunk, 0, kMostBytes)
      .between("peers", use.peers, 0, group.ranks - 1)
      .between("remote peers", use.remote_peers, 0, std::max<std::int64_t>(use.peers, 0))
      .raise_if_any();
}

std::vector<Buffer> fixed_memory(const NcclSettings& settings, const NcclChannels& channels,
                                 bool nvls) {
  const std::int64_t most = std::max(channels.collective, channels.peer_to_peer);
  if (!settings.cumem) {
    // Small cudaMallocs share slabs.
    return {driver("channel structures", "shared slabs", 2 * kMiB)};
  }
  const Bytes granule{settings.granule};
  if (settings.shares_resources) {
    return {driver("channel structures", fmt::format("2 granules x {} channels", most),
                   granule * (2 * most))};
  }
  std::vector<Buffer> buffers = {
      driver("channel structures", fmt::format("3 granules x {} channels", most),
             granule * (3 * most)),
      driver("communicator", "3 granules", granule * 3)};
  if (nvls) {
    buffers.push_back(driver("NVLS channel structures",
                             fmt::format("1 granule x {} NVLS channels", channels.nvls),
                             granule * channels.nvls));
  }
  return buffers;
}

std::vector<Buffer> nvls_memory(const RankGroup& group, const NcclSettings& settings,
                                const NcclChannels& channels) {
  constexpr std::int64_t kMostHeads = 32;
  constexpr std::int64_t kCreditBytes = 64;
  const std::int64_t heads = std::min(local_ranks(group), kMostHeads);
  const std::int64_t slots = product(channels.nvls, 2, heads);
  return {driver("NVLS data",
                 fmt::format("{} channels x 2 x {} x 8 x {} heads", channels.nvls,
                             channels.nvls_chunk, heads),
                 Bytes{granules(product(slots, channels.nvls_chunk, kSteps), settings)},
                 Backing::kSymmetric),
          driver("NVLS credits", "channels x 2 x 64 x heads",
                 Bytes{granules(product(slots, kCreditBytes), settings)}, Backing::kSymmetric)};
}

// A send and a receive connection over the network.
std::int64_t network_pair(const NcclSettings& settings) {
  const std::int64_t send = settings.ll128_bytes + settings.buffer_bytes;
  const std::int64_t receive = protocol_bytes(settings) + settings.buffer_bytes;
  return granules(send, settings) + granules(receive, settings);
}

std::vector<Buffer> ring_memory(const RankGroup& group, const NcclSettings& settings,
                                const NcclChannels& channels, bool tree) {
  const Bytes pair = nccl_pair_bytes(settings);
  // Within a node a rank has a neighbour on both sides, but for one send and one receive at the
  // node's edges, whose places are spread over the ranks channel by channel.
  const std::int64_t edges =
      group.nodes > 1 ? div_ceil(channels.collective, local_ranks(group)) : 0;
  const std::int64_t inner =
      local_ranks(group) > 1 ? channels.collective : channels.collective - edges;
  std::vector<Buffer> buffers;
  if (inner > 0) {
    buffers.push_back(
        driver("ring", fmt::format("{} channels x {} B", inner, pair.count()), pair * inner));
    if (tree && local_ranks(group) > 2) {
      buffers.push_back(driver("tree, other direction",
                               fmt::format("{} channels x {} B", inner, pair.count()),
                               pair * inner));
    }
  }
  if (edges > 0) {
    const Bytes network{network_pair(settings)};
    buffers.push_back(driver(
        "network", fmt::format("{} channels x {} B", edges * (tree ? 2 : 1), network.count()),
        network * (edges * (tree ? 2 : 1)),
        settings.gpu_direct ? Backing::kDriver : Backing::kPinnedHost));
  }
  return buffers;
}

std::vector<Buffer> peer_memory(const RankGroup& group, const NcclSettings& settings,
                                const NcclChannels& channels, const NcclUse& use) {
  const Bytes pair = nccl_pair_bytes(settings);
  std::vector<Buffer> buffers;
  if (const std::int64_t near = use.peers - use.remote_peers; near > 0) {
    buffers.push_back(
        driver("peer to peer",
               fmt::format("{} peers x {} channels x {} B", near, channels.per_peer, pair.count()),
               pair * product(near, channels.per_peer)));
  }
  if (use.remote_peers > 0) {
    // One pool for all remote peers and each direction.
    constexpr std::int64_t kSlots = 16;
    const std::int64_t chunk = group.gpu->compute_major >= 10 ? 262'144 : 131'072;
    const std::int64_t pool = product(channels.peer_to_peer, kSlots, chunk);
    buffers.push_back(driver("network peer to peer", "2 x p2p channels x 16 x chunk",
                             Bytes{product(2, granules(pool, settings))},
                             settings.gpu_direct ? Backing::kDriver : Backing::kPinnedHost));
  }
  return buffers;
}

Buffer symmetric_scratch(const RankGroup& group, const NcclSettings& settings) {
  constexpr std::int64_t kBlocks = 64;
  constexpr std::int64_t kLineBytes = 16;
  constexpr std::int64_t kLines = 512;
  return driver(
      "symmetric kernels", "64 x (1 + 2 x n x 512) x 16",
      Bytes{granules(product(kBlocks, 1 + product(2, local_ranks(group), kLines), kLineBytes),
                     settings)},
      Backing::kSymmetric);
}

}  // namespace

NcclChannels nccl_channels(const RankGroup& group, const Version& version) {
  check_group(group);
  NcclChannels channels;
  const std::string place = group.nodes > 1 ? "_nodes" : "";
  channels.collective = std::clamp<std::int64_t>(
      count_of(group, fmt::format("collective.{}{}", link_name(group.link), place), version), 1,
      kMostChannels);
  channels.peer_to_peer = std::min(next_power_of_two(channels.collective), kMostChannels);
  channels.per_peer = std::min(
      next_power_of_two(std::min(link_channels(group), channels.collective)), kMostChannels);
  if (group.link == Link::kNvSwitch && group.gpu->compute_major >= 9) {
    channels.nvls = count_of(group, "nvls" + place, version);
    channels.nvls_chunk = count_of(group, "nvls_chunk", version);
  }
  return channels;
}

Bytes nccl_pair_bytes(const NcclSettings& settings) {
  const std::int64_t send = kHeaderBytes + (settings.read_mode ? settings.buffer_bytes : 0);
  const std::int64_t receive =
      kHeaderBytes + protocol_bytes(settings) + (settings.read_mode ? 0 : settings.buffer_bytes);
  return Bytes{granules(send, settings) + granules(receive, settings)};
}

Bytes nccl_mem_alloc(Bytes bytes, const NcclSettings& settings) {
  return align_up(bytes, Bytes{settings.granule});
}

std::vector<Buffer> NcclMemory::all() const {
  std::vector<Buffer> buffers = at_creation;
  append(buffers, at_first_collective);
  append(buffers, at_first_send);
  return buffers;
}

NcclMemory nccl_memory(const RankGroup& group, const NcclSettings& settings, const NcclUse& use) {
  check_group(group);
  NcclMemory memory;
  if (group.ranks == 1) {
    return memory;
  }
  const NcclChannels channels = settings.channels.value_or(nccl_channels(group, settings.version));
  check_settings(settings, channels, group, use);
  const bool nvls = settings.nvls && channels.nvls > 0 && local_ranks(group) > 1;
  memory.at_creation = fixed_memory(settings, channels, nvls);
  const bool lazy = settings.cumem && settings.runtime_connect;
  std::vector<Buffer>& connected = lazy ? memory.at_first_collective : memory.at_creation;
  if (use.rings || !lazy) {
    append(connected, ring_memory(group, settings, channels, use.tree || !lazy));
  }
  // Where resources are shared, the parent holds them.
  if (nvls && (use.nvls || !lazy) && !settings.shares_resources) {
    append(connected, nvls_memory(group, settings, channels));
  }
  if (use.symmetric_kernels) {
    memory.at_first_collective.push_back(symmetric_scratch(group, settings));
  }
  memory.at_first_send = peer_memory(group, settings, channels, use);
  return memory;
}

}  // namespace oomcast::comm
