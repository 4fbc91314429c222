// Buffers of all-reduces beside NCCL, on one rank. Sources: facts page `runtime` section 5 and the
// sources it names; limits by GPU generation and group size: models/kernels/all_reduce.json.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/comm/group.hpp"
#include "sim/core/version.hpp"
#include "sim/kernels/buffer.hpp"

namespace oomcast::comm {

enum class Engine : std::uint8_t { kVllm, kSglang };

struct EngineVersion {
  Engine engine = Engine::kVllm;
  Version version;
};

// Largest input of the custom all-reduce. None: not used for this group (more than one node, a size
// it has no kernel for, more than two GPUs over PCIe). `beside_symmetric`: vLLM lowers it where
// symmetric memory takes the larger inputs.
std::optional<Bytes> custom_all_reduce_limit(const RankGroup& group, const EngineVersion& engine,
                                             bool beside_symmetric);

// Two IPC buffers of the limit, one behind the signals (custom_all_reduce.cuh), and 8 MiB of
// addresses.
std::vector<Buffer> custom_all_reduce(const RankGroup& group, const EngineVersion& engine,
                                      bool beside_symmetric);

// PyTorch's symmetric memory (multimem or two-shot); empty where the engine has no size for the
// group.
std::vector<Buffer> symmetric_all_reduce(const RankGroup& group, const EngineVersion& engine);

// A pool on ncclMemAlloc made at start (SGLang --enable-symm-mem).
std::vector<Buffer> nccl_symmetric_pool(const EngineVersion& engine);

struct FusedAllReduce {
  std::int64_t tokens = 1;  // the workspace is made for
  std::int64_t hidden = 1;
  std::int64_t element_bytes = 2;
};

// Tokens for which vLLM makes the workspace: its limit in MiB over a token's bytes, by generation
// and group size. None: fusion is off for the group.
std::optional<std::int64_t> vllm_fused_tokens(const RankGroup& group, const Version& version,
                                              std::int64_t hidden, std::int64_t element_bytes);
// SGLang's fixed number.
inline constexpr std::int64_t kSglangFusedTokens = 2048;

// FlashInfer's fused all-reduce, TRT-LLM backend (flashinfer/comm/trtllm_ar.py): data, flags and
// three Lamport buffers from the driver, about 4 x ranks x tokens x H x b.
std::vector<Buffer> flashinfer_fused(const RankGroup& group, const FusedAllReduce& shape);
// Its multi-node NVLink backend.
std::vector<Buffer> flashinfer_mnnvl(const RankGroup& group, const FusedAllReduce& shape,
                                     std::int64_t one_shot_tokens);
// The older custom all-reduce of FlashInfer's TRT-LLM module: seven IPC buffers.
std::vector<Buffer> flashinfer_legacy(const RankGroup& group, const FusedAllReduce& shape);

// TensorRT-LLM's PyTorch backend: 4 x s x ranks, s by version and mode.
std::vector<Buffer> trtllm_all_reduce(const RankGroup& group, const Version& version,
                                      bool deterministic);

// --- One group, all together

struct GroupSetup {
  EngineVersion engine;
  bool custom = true;      // --disable-custom-all-reduce is off
  bool symmetric = false;  // PyTorch's symmetric memory
  bool nccl_pool = false;
  std::optional<FusedAllReduce> fused;  // FlashInfer's fusion is on; tokens 0: the engine's own
};

// What the engine makes for its tensor-parallel group beside NCCL.
std::vector<Buffer> tensor_group_buffers(const RankGroup& group, const GroupSetup& setup);

}  // namespace oomcast::comm
