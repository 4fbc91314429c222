// Buffers through which the ranks of an expert-parallel group send tokens to experts (dispatch) and
// get results back (combine), on one rank. Sources: facts page `runtime` section 6 and the sources
// it names; constants that are not read in code: models/kernels/expert_dispatch.json.
//
// Symbols: n ranks, T most tokens that one rank dispatches at once, H hidden size, E experts over
// all ranks (copies included), k experts a token, E_l = E / n, I an expert's width.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/core/version.hpp"
#include "sim/kernels/buffer.hpp"

namespace oomcast::comm {

struct DispatchShape {
  std::int64_t ranks = 1;
  std::int64_t tokens = 1;
  std::int64_t hidden = 1;
  std::int64_t experts = 1;
  std::int64_t experts_per_token = 1;
};

// What travels to the experts; what comes back is 16 bits.
enum class Payload : std::uint8_t {
  kBf16,
  kFp8,    // with a 4-byte scale for 128 values
  kNvfp4,  // with a 1-byte scale for 16 values
};

// Every function throws ConfigError naming each extent that cannot be.

// --- DeepEP, kernels of 2025 (csrc/legacy/config.hpp, csrc/kernels)

inline constexpr std::int64_t kDeepEpMultiprocessors = 20;

// Buffer::get_dispatch_config and get_combine_config: tokens a channel's queues hold.
struct DeepEpQueues {
  std::int64_t nvlink_send = 0;
  std::int64_t nvlink_receive = 0;
  std::int64_t rdma_send = 0;
  std::int64_t rdma_receive = 0;
};
enum class DeepEpPass : std::uint8_t { kDispatch, kCombine };

// Sizes of a group that the library has queues for: 2, 4, 8, 16 ... 160.
std::span<const std::int64_t> deep_ep_group_sizes();
// Throws ConfigError naming the sizes there are.
DeepEpQueues deep_ep_queues(std::int64_t ranks, DeepEpPass pass);

// Config::get_nvl_buffer_size_hint and get_rdma_buffer_size_hint. `token_bytes` of hidden values;
// RDMA is 0 within a node of 8.
Bytes deep_ep_nvlink_hint(const DeepEpQueues& queues, std::int64_t ranks, std::int64_t token_bytes,
                          std::int64_t multiprocessors);
Bytes deep_ep_rdma_hint(const DeepEpQueues& queues, std::int64_t ranks, std::int64_t token_bytes,
                        std::int64_t multiprocessors);

// Buffer::get_low_latency_rdma_size_hint; does not depend on the number of ranks.
Bytes deep_ep_low_latency_hint(const DispatchShape& shape);

// A deep_ep.Buffer with these sizes: NVLink buffer and workspace from the driver, RDMA from
// NVSHMEM's symmetric heap, which grows in steps of 512 MiB over what the library needs itself.
std::vector<Buffer> deep_ep_buffer(Bytes nvlink, Bytes rdma);

// Tensors of one call: what low-latency dispatch hands to the experts (E_l x n x T rows, whatever
// was routed) and combine's result; and the same of the normal kernels for `received` tokens.
std::vector<Buffer> deep_ep_low_latency_tensors(const DispatchShape& shape, Payload payload);
std::vector<Buffer> deep_ep_normal_tensors(const DispatchShape& shape, Payload payload,
                                           std::int64_t received);

// --- DeepEP from 2026: ElasticBuffer (csrc/elastic/buffer.hpp)

struct ElasticTopology {
  std::int64_t scale_out = 1;     // NVLink domains
  bool nvlink = true;             // within a domain: ranks read each other's memory
  bool reduces_at_sender = true;  // several results of one token are added before they travel
};
std::vector<Buffer> deep_ep_elastic(const DispatchShape& shape, Payload payload,
                                    const ElasticTopology& topology);

// --- Others

// Perplexity's kernels between nodes, all from NVSHMEM's heap; `groups` of ranks with equal tokens.
std::vector<Buffer> pplx(const DispatchShape& shape, Payload payload, std::int64_t data_parallel);
// FlashInfer and TensorRT-LLM over multi-node NVLink: queues a peer and channel; and one buffer
// that every rank writes into.
std::vector<Buffer> nvlink_two_sided(const DispatchShape& shape, int multiprocessors);
std::vector<Buffer> nvlink_one_sided(const DispatchShape& shape, Payload payload);
std::vector<Buffer> mooncake_ep(const DispatchShape& shape);
// As low-latency DeepEP, made for `most_ranks` (VLLM_NIXL_EP_MAX_NUM_RANKS) however many there are.
std::vector<Buffer> nixl_ep(const DispatchShape& shape, std::int64_t most_ranks);
// DeepGEMM's fused dispatch, experts and combine (csrc/apis/mega.hpp). `width` is I.
std::vector<Buffer> mega_moe(const DispatchShape& shape, Payload payload, std::int64_t width);

// Naive all-gather and reduce-scatter: all ranks' hidden values and router logits, on each rank.
std::vector<Buffer> gathered_tokens(const DispatchShape& shape, std::int64_t element_bytes);

}  // namespace oomcast::comm
