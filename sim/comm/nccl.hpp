// Device memory of one NCCL communicator on one rank (NCCL 2.30; facts page `runtime` section 4 and
// the sources it names). Buffers come from the driver, outside PyTorch.
//
// Sizes of buffers are read in the source. How many channels a topology search opens is not: the
// defaults below are what was seen, and each can be set.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/comm/group.hpp"
#include "sim/core/version.hpp"
#include "sim/kernels/buffer.hpp"

namespace oomcast::comm {

struct NcclChannels {
  std::int64_t collective = 0;    // of ring and tree
  std::int64_t peer_to_peer = 0;  // in all
  std::int64_t per_peer = 0;      // to one peer
  std::int64_t nvls = 0;          // 0: no multicast
  std::int64_t nvls_chunk = 0;    // bytes
};

// What NCCL would open for the group; collective and NVLS channels by link, GPU generation and
// version from models/kernels/nccl.json.
NcclChannels nccl_channels(const RankGroup& group, const Version& version);

struct NcclSettings {
  Version version{{2, 30, 0}};
  bool cumem = true;  // NCCL_CUMEM_ENABLE: each small allocation takes a granule
  bool nvls = true;   // NCCL_NVLS_ENABLE
  // NCCL_RUNTIME_CONNECT, which needs cuMem: buffers at the first collective that selects them;
  // else all at creation, rings, trees and NVLS alike.
  bool runtime_connect = true;
  bool read_mode = false;         // NCCL_P2P_READ; NCCL's default only between sm_80 over NVLink
  bool shares_resources = false;  // split from a parent with shareResources
  bool gpu_direct = true;         // over the network; else buffers are in pinned host memory
  std::int64_t buffer_bytes = 4'194'304;         // NCCL_BUFFSIZE, the Simple protocol
  std::int64_t ll_bytes = 524'288;               // NCCL_LL_BUFFSIZE
  std::int64_t ll128_bytes = 4'915'200;          // NCCL_LL128_BUFFSIZE
  std::int64_t granule = std::int64_t{2} << 20;  // cuMemGetAllocationGranularity
  std::optional<NcclChannels> channels;          // none: nccl_channels()
};

// What the group does with its communicator.
struct NcclUse {
  bool rings = true;               // any collective that a ring or tree serves
  bool tree = false;               // adds the other direction of each edge, which two ranks have
  bool nvls = false;               // an all-reduce large enough for multicast
  std::int64_t peers = 0;          // distinct ranks that send/recv or all-to-all reaches
  std::int64_t remote_peers = 0;   // of them on other nodes
  bool symmetric_kernels = false;  // a window was registered
};

struct NcclMemory {
  std::vector<Buffer> at_creation;
  std::vector<Buffer> at_first_collective;
  std::vector<Buffer> at_first_send;

  [[nodiscard]] std::vector<Buffer> all() const;
};

// Ranks at the edges of a node's ring hold its network connections; the most loaded rank is meant.
// A group of one rank takes nothing.
NcclMemory nccl_memory(const RankGroup& group, const NcclSettings& settings, const NcclUse& use);

// One send and receive connection within a node.
Bytes nccl_pair_bytes(const NcclSettings& settings);

// ncclMemAlloc: whole granules.
Bytes nccl_mem_alloc(Bytes bytes, const NcclSettings& settings);

}  // namespace oomcast::comm
