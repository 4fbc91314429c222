#include "sim/comm/nccl.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"

namespace oomcast::comm {
namespace {

const models::GpuSpec& gpu(const char* name) {
  static const models::GpuSpec h100 = models::find_gpu("H100");
  static const models::GpuSpec a100 = models::find_gpu("A100");
  static const models::GpuSpec b200 = models::find_gpu("B200");
  static const models::GpuSpec l40s = models::find_gpu("L40S");
  return name[0] == 'H' ? h100 : name[0] == 'A' ? a100 : name[0] == 'B' ? b200 : l40s;
}

RankGroup switched(const char* card, std::int64_t ranks, std::int64_t nodes = 1) {
  return {ranks, nodes, Link::kNvSwitch, &gpu(card)};
}

Bytes bytes_of(const std::vector<Buffer>& buffers, std::string_view name) {
  const auto found = std::find_if(buffers.begin(), buffers.end(),
                                  [&](const Buffer& buffer) { return buffer.name == name; });
  return found == buffers.end() ? Bytes{0} : found->bytes;
}

NcclUse rings() { return {}; }
NcclUse everything(std::int64_t peers, std::int64_t remote = 0) {
  return {true, true, true, peers, remote, true};
}

TEST(Nccl, ConnectorsOnPaper) {
  NcclSettings settings;
  // Send 4 KiB -> 2 MiB; receive 4 KiB + LL + LL128 + Simple = 9,637,888 -> 10 MiB.
  EXPECT_EQ(nccl_pair_bytes(settings), 12 * kMiB);
  settings.read_mode = true;  // 4 KiB + 4 MiB -> 6 MiB; 4 KiB + LL + LL128 = 5,443,584 -> 6 MiB
  EXPECT_EQ(nccl_pair_bytes(settings), 12 * kMiB);
  settings.read_mode = false;
  settings.buffer_bytes = 8 << 20;
  EXPECT_EQ(nccl_pair_bytes(settings), 16 * kMiB);
  EXPECT_EQ(nccl_mem_alloc(Bytes{1}, settings), 2 * kMiB);
}

TEST(Nccl, ChannelsOfEightH100) {
  const NcclChannels channels = nccl_channels(switched("H100", 8), {{2, 30, 0}});
  EXPECT_EQ(channels.collective, 24);
  EXPECT_EQ(channels.nvls, 16);
  EXPECT_EQ(channels.peer_to_peer, 32);
  EXPECT_EQ(channels.per_peer, 32);
  EXPECT_EQ(nccl_channels(switched("A100", 8), {{2, 30, 0}}).nvls, 0);
  EXPECT_EQ(nccl_channels({2, 1, Link::kPcie, &gpu("L40S")}, {{2, 30, 0}}).per_peer, 2);
  EXPECT_EQ(nccl_channels(switched("B200", 8), {{2, 25, 0}}).nvls, 16);
  EXPECT_EQ(nccl_channels(switched("B200", 8), {{2, 26, 0}}).nvls, 32);
  EXPECT_EQ(nccl_channels(switched("B200", 8), {{2, 27, 0}}).nvls, 24);
}

TEST(Nccl, EightH100OnPaper) {
  const NcclMemory memory = nccl_memory(switched("H100", 8), {}, everything(7));
  // 6 MiB x 32 channels + 2 MiB x 16 NVLS channels + 6 MiB before any collective.
  EXPECT_EQ(device_bytes(memory.at_creation), 230 * kMiB);
  EXPECT_EQ(bytes_of(memory.at_first_collective, "ring"), 288 * kMiB);
  EXPECT_EQ(bytes_of(memory.at_first_collective, "tree, other direction"), 288 * kMiB);
  EXPECT_EQ(bytes_of(memory.at_first_collective, "NVLS data"), 256 * kMiB);
  EXPECT_EQ(bytes_of(memory.at_first_collective, "NVLS credits"), 2 * kMiB);
  // 64 x (1 + 2 x 8 x 512) x 16 = 8.4 MB.
  EXPECT_EQ(bytes_of(memory.at_first_collective, "symmetric kernels"), 10 * kMiB);
  // All seven peers, 32 channels each.
  EXPECT_EQ(device_bytes(memory.at_first_send), 2688 * kMiB);
  EXPECT_EQ(device_bytes(memory.all()), (230 + 288 + 288 + 256 + 2 + 10 + 2688) * kMiB);
}

TEST(Nccl, WorkedBudgets) {
  // vLLM, TP 4 on H100: fixed 230, ring 288, NVLS 128.
  NcclUse use = rings();
  use.nvls = true;
  const NcclMemory four = nccl_memory(switched("H100", 4), {}, use);
  EXPECT_EQ(device_bytes(four.at_creation), 230 * kMiB);
  EXPECT_EQ(bytes_of(four.at_first_collective, "ring"), 288 * kMiB);
  EXPECT_EQ(bytes_of(four.at_first_collective, "NVLS data"), 128 * kMiB);
  // SGLang, TP 8: cuMem and NVLS off; about 2 MiB and ring 288, all at creation.
  NcclSettings sglang;
  sglang.cumem = false;
  sglang.nvls = false;
  const NcclMemory eight = nccl_memory(switched("H100", 8), sglang, rings());
  EXPECT_EQ(bytes_of(eight.at_creation, "channel structures"), 2 * kMiB);
  EXPECT_EQ(bytes_of(eight.at_creation, "ring"), 288 * kMiB);
  EXPECT_TRUE(eight.at_first_collective.empty());
  // 8 x B200: 384 MiB of NVLS.
  EXPECT_EQ(bytes_of(nccl_memory(switched("B200", 8), {}, use).at_first_collective, "NVLS data"),
            384 * kMiB);
  // More ranks than 32 in one NVLink domain: 32 heads.
  EXPECT_EQ(bytes_of(nccl_memory(switched("B200", 72), {}, use).at_first_collective, "NVLS data"),
            bytes_of(nccl_memory(switched("B200", 32), {}, use).at_first_collective, "NVLS data"));
}

TEST(Nccl, LazyConnectionDefersNothingElse) {
  NcclSettings eager;
  eager.runtime_connect = false;
  NcclUse use = rings();
  use.tree = use.nvls = true;
  const RankGroup group = switched("H100", 8);
  EXPECT_EQ(device_bytes(nccl_memory(group, eager, {}).at_creation),
            device_bytes(nccl_memory(group, {}, use).all()));
  NcclUse idle;
  idle.rings = false;
  EXPECT_TRUE(nccl_memory(group, {}, idle).at_first_collective.empty());
}

TEST(Nccl, TwoRanksHaveBothDirectionsInTheRing) {
  NcclUse use = rings();
  const Bytes ring = device_bytes(nccl_memory(switched("A100", 2), {}, use).all());
  use.tree = true;
  EXPECT_EQ(device_bytes(nccl_memory(switched("A100", 2), {}, use).all()), ring);
}

TEST(Nccl, SplitsShareWithTheirParent) {
  NcclSettings shared;
  shared.shares_resources = true;
  NcclUse use = rings();
  use.nvls = true;
  const NcclMemory memory = nccl_memory(switched("H100", 8), shared, use);
  EXPECT_EQ(device_bytes(memory.at_creation), 4 * kMiB * 32);
  EXPECT_EQ(bytes_of(memory.at_first_collective, "NVLS data"), Bytes{0});
}

TEST(Nccl, NetworkEdgesOnPaper) {
  NcclSettings settings;
  settings.channels = NcclChannels{16, 16, 16, 0, 0};
  // 2 nodes x 8: each rank is at an edge in 16 / 8 = 2 channels; send 9,109,504 and receive
  // 9,633,792 take 10 MiB each.
  const NcclMemory memory = nccl_memory(switched("H100", 16, 2), settings, rings());
  EXPECT_EQ(bytes_of(memory.at_first_collective, "ring"), 16 * 12 * kMiB);
  EXPECT_EQ(bytes_of(memory.at_first_collective, "network"), 2 * 20 * kMiB);
  // One rank a node: only the network.
  const NcclMemory alone = nccl_memory(switched("H100", 2, 2), settings, rings());
  EXPECT_EQ(device_bytes(alone.at_first_collective), 16 * 20 * kMiB);
  // Without GPU direct the buffers lie in host memory.
  settings.gpu_direct = false;
  const NcclMemory host = nccl_memory(switched("H100", 2, 2), settings, rings());
  EXPECT_EQ(device_bytes(host.at_first_collective), Bytes{0});
  EXPECT_EQ(host_bytes(host.at_first_collective), 16 * 20 * kMiB);
  // A pipeline's neighbour on the other node: 16 channels x 16 slots x 128 KiB, both directions.
  settings.gpu_direct = true;
  NcclUse pipeline;
  pipeline.rings = false;
  pipeline.peers = pipeline.remote_peers = 1;
  EXPECT_EQ(device_bytes(nccl_memory(switched("H100", 2, 2), settings, pipeline).at_first_send),
            64 * kMiB);
}

TEST(Nccl, GrowsWithChannelsPeersAndRanks) {
  Bytes before;
  for (std::int64_t channels = 1; channels <= 64; ++channels) {
    NcclSettings settings;
    settings.channels = NcclChannels{channels, channels, channels, channels, 131'072};
    const Bytes now = device_bytes(nccl_memory(switched("H100", 8), settings, everything(7)).all());
    EXPECT_GT(now, before);
    before = now;
  }
  before = Bytes{0};
  for (std::int64_t peers = 0; peers < 8; ++peers) {
    const Bytes now = device_bytes(nccl_memory(switched("H100", 8), {}, everything(peers)).all());
    EXPECT_GT(now, before);
    before = now;
  }
}

TEST(Nccl, OneRankTakesNothingAndNonsenseIsRefused) {
  EXPECT_TRUE(nccl_memory(switched("H100", 1), {}, rings()).all().empty());
  EXPECT_THROW(nccl_memory(switched("H100", 0), {}, rings()), ConfigError);
  EXPECT_THROW(nccl_memory(switched("H100", 3, 2), {}, rings()), ConfigError);
  EXPECT_THROW(nccl_memory(switched("H100", 2, 3), {}, rings()), ConfigError);
  EXPECT_THROW(nccl_memory({2, 1, Link::kPcie, nullptr}, {}, rings()), ConfigError);
  EXPECT_THROW(nccl_memory(switched("H100", 8), {}, everything(8)), ConfigError);
  EXPECT_THROW(nccl_memory(switched("H100", 8), {}, everything(2, 3)), ConfigError);
  NcclSettings settings;
  settings.channels = NcclChannels{65, 1, 1, 0, 0};
  settings.granule = 0;
  try {
    nccl_memory(switched("H100", 8), settings, rings());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.problems().size(), 2U);
  }
}

}  // namespace
}  // namespace oomcast::comm
