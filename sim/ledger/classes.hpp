// The two dimensions of every byte: what it is for (leaf of a class) and where it physically lies
// (backing). Names are those of `plan --json` and of the columns of timeline.csv.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace oomcast {

enum class Leaf : std::uint8_t {
  // 1 model
  kModelWeights,
  kModelScales,
  kModelBuffers,  // tensors the engine keeps beside the weights: runner inputs, sampler tables
  // 2 KV cache
  kKvPool,
  kKvMetadata,
  kKvTransfer,
  // 3 CUDA graphs
  kGraphPool,  // private pool and the driver's memory for instantiated graphs
  kGraphStaticIo,
  // 4 runtime tensors
  kRuntimeActivations,
  kRuntimeIntermediates,
  kRuntimeLogits,
  // 5 kernel workspace
  kWorkspaceAttention,
  kWorkspaceGemm,
  kWorkspaceMoe,
  // 6 communication
  kCommNccl,
  kCommExpert,
  kCommTransfer,
  // 7 system and allocator
  kSystemContext,
  kSystemCached,
  kSystemFragmentation,
};
inline constexpr std::size_t kLeafCount = 20;

enum class Backing : std::uint8_t {
  kDriver,       // cudaMalloc by a library, outside PyTorch
  kSegment,      // segment of PyTorch's default pool
  kPrivatePool,  // PyTorch private pool of CUDA graphs
  kContext,      // CUDA context, loaded modules, driver structures
  kSymmetric,    // VMM, NVSHMEM or multicast mappings
  kPinnedHost,   // page-locked host memory: counts for the host, never for HBM
};
inline constexpr std::size_t kBackingCount = 6;

inline constexpr std::array<std::string_view, kLeafCount> kLeafNames = {
    "model.weights",       "model.scales",          "model.buffers",  "kv.pool",
    "kv.metadata",         "kv.transfer",           "graph.pool",     "graph.static_io",
    "runtime.activations", "runtime.intermediates", "runtime.logits", "workspace.attention",
    "workspace.gemm",      "workspace.moe",         "comm.nccl",      "comm.expert",
    "comm.transfer",       "system.context",        "system.cached",  "system.fragmentation"};

inline constexpr std::array<std::string_view, kBackingCount> kBackingNames = {
    "driver", "segment", "private_pool", "context", "symmetric", "pinned_host"};

constexpr std::size_t index_of(Leaf leaf) { return static_cast<std::size_t>(leaf); }
constexpr std::size_t index_of(Backing backing) { return static_cast<std::size_t>(backing); }
constexpr std::string_view name_of(Leaf leaf) { return kLeafNames[index_of(leaf)]; }
constexpr std::string_view name_of(Backing backing) { return kBackingNames[index_of(backing)]; }

constexpr bool is_host(Backing backing) { return backing == Backing::kPinnedHost; }
constexpr bool is_torch(Backing backing) {
  return backing == Backing::kSegment || backing == Backing::kPrivatePool;
}

}  // namespace oomcast
