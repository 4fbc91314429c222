#include "sim/comm/expert_dispatch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "sim/comm/persistent.hpp"
#include "sim/kernels/preset.hpp"

namespace oomcast::comm {
namespace {

constexpr std::int64_t kInt = 4;
constexpr std::int64_t kLong = 8;
constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kHalf = 2;
constexpr std::int64_t kScaleGroup = 128;
constexpr std::int64_t kNvlinkPeers = 8;  // NUM_MAX_NVL_PEERS
constexpr std::int64_t kLine = 128;       // alignment of DeepEP's and the one-sided buffers

void check_shape(const char* backend, const DispatchShape& shape) {
  constexpr std::int64_t kMostRanks = 1 << 16;
  constexpr std::int64_t kMostExperts = 1 << 20;
  constexpr std::int64_t kMostHidden = std::int64_t{1} << 24;
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
  ShapeCheck{backend}
      .between("ranks", shape.ranks, 1, kMostRanks)
      .between("tokens", shape.tokens, 1, kMostTokens)
      .between("hidden size", shape.hidden, 1, kMostHidden)
      .between("experts", shape.experts, 1, kMostExperts)
      .between("experts per token", shape.experts_per_token, 1,
               std::max<std::int64_t>(shape.experts, 1))
      .raise_if_any();
}

std::int64_t local_experts(const DispatchShape& shape) {
  return div_ceil(shape.experts, shape.ranks);
}

// Hidden values of one token as they travel, and their scales.
std::int64_t value_bytes(const DispatchShape& shape, Payload payload) {
  switch (payload) {
    case Payload::kBf16:
      return product(kHalf, shape.hidden);
    case Payload::kFp8:
      return shape.hidden;
    case Payload::kNvfp4:
      break;
  }
  return div_ceil(shape.hidden, 2);
}

std::int64_t scale_bytes(const DispatchShape& shape, Payload payload) {
  constexpr std::int64_t kNvfp4Group = 16;
  switch (payload) {
    case Payload::kBf16:
      return 0;
    case Payload::kFp8:
      return product(div_ceil(shape.hidden, kScaleGroup), kFloat);
    case Payload::kNvfp4:
      break;
  }
  return div_ceil(shape.hidden, kNvfp4Group);
}

struct QueueRow {
  std::int64_t ranks;
  DeepEpQueues dispatch;
  DeepEpQueues combine;
};

// deep_ep/buffer.py, get_dispatch_config and get_combine_config.
constexpr std::array<QueueRow, 12> kQueues{{
    {2, {24, 256, 6, 128}, {10, 256, 6, 128}},
    {4, {6, 256, 6, 128}, {9, 256, 6, 128}},
    {8, {6, 256, 6, 128}, {4, 256, 6, 128}},
    {16, {36, 288, 20, 128}, {4, 288, 12, 128}},
    {24, {32, 288, 8, 128}, {1, 288, 8, 128}},
    {32, {32, 288, 8, 128}, {1, 288, 8, 128}},
    {48, {32, 288, 8, 128}, {1, 288, 8, 128}},
    {64, {32, 288, 8, 128}, {1, 288, 8, 128}},
    {96, {20, 480, 12, 128}, {1, 480, 8, 128}},
    {128, {20, 560, 12, 128}, {1, 560, 8, 128}},
    {144, {32, 720, 12, 128}, {2, 720, 8, 128}},
    {160, {28, 720, 12, 128}, {2, 720, 8, 128}},
}};

constexpr std::array<std::int64_t, kQueues.size()> group_sizes() {
  std::array<std::int64_t, kQueues.size()> sizes{};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sizes[i] = kQueues[i].ranks;
  }
  return sizes;
}
constexpr auto kGroupSizes = group_sizes();

// One token in the queues: hidden values, where it came from, 128 ids, weights and scales each.
constexpr std::int64_t kMostTopk = 128;
constexpr std::int64_t kSourceBytes = 8;
std::int64_t queued_token(std::int64_t token_bytes) {
  return detail::checked_add(token_bytes, kSourceBytes + kMostTopk * (kLong + kFloat + kFloat));
}

struct QueueExtents {
  std::int64_t channels = 1;
  std::int64_t nodes = 1;
  std::int64_t peers = 1;
};

QueueExtents extents(std::int64_t ranks, std::int64_t token_bytes, std::int64_t multiprocessors) {
  constexpr std::int64_t kMost = 1 << 24;
  ShapeCheck{"DeepEP queues"}
      .between("ranks", ranks, 1, 1 << 16)
      .between("bytes of a token", token_bytes, 1, kMost)
      .between("multiprocessors", multiprocessors, 2, 1024)
      .raise_if_any();
  return {multiprocessors / 2, std::max<std::int64_t>(ranks / kNvlinkPeers, 1),
          std::min(ranks, kNvlinkPeers)};
}

// NVSHMEM_CUMEM_GRANULARITY as DeepEP sets it.
constexpr Bytes kHeapStep = 512 * kMiB;

Buffer from_symmetric_heap(std::string_view name, std::string formula, Bytes bytes) {
  const Bytes internal =
      kernels::preset_bytes({"kernels/expert_dispatch.json", "nvshmem.internal", Version{}})
          .value_or(Bytes{0});
  return kept(name, std::move(formula), align_up(bytes + internal, kHeapStep), Backing::kSymmetric);
}

// Rows of the ring between the two products.
std::int64_t mega_ring(const DispatchShape& shape) {
  constexpr std::int64_t kPrefillTokens = 6144;
  constexpr std::int64_t kPrefillRing = 786'432;
  constexpr std::int64_t kDecodeRing = 1'770'624;  // the pool of T 4096, E_l 6, k 6, n 72
  constexpr std::int64_t kBlockLess = 191;
  constexpr std::int64_t kAlign = 384;
  const std::int64_t arriving = product(shape.ranks, shape.tokens);
  const std::int64_t pool =
      align_up(detail::checked_add(
                   product(arriving, std::min(shape.experts_per_token, local_experts(shape))),
                   product(local_experts(shape), kBlockLess)),
               kAlign);
  const std::int64_t limit = shape.tokens >= kPrefillTokens ? kPrefillRing : kDecodeRing;
  return std::clamp(limit, std::min(arriving, pool), pool);
}

}  // namespace

std::span<const std::int64_t> deep_ep_group_sizes() { return kGroupSizes; }

DeepEpQueues deep_ep_queues(std::int64_t ranks, DeepEpPass pass) {
  const auto found = std::find_if(kQueues.begin(), kQueues.end(),
                                  [&](const QueueRow& row) { return row.ranks == ranks; });
  if (found == kQueues.end()) {
    throw ConfigError(Problem{"DeepEP", "ranks of the expert-parallel group", std::to_string(ranks),
                              fmt::format("one of {}", fmt::join(kGroupSizes, ", ")),
                              "the library has queue sizes for these groups only"});
  }
  return pass == DeepEpPass::kDispatch ? found->dispatch : found->combine;
}

Bytes deep_ep_nvlink_hint(const DeepEpQueues& queues, std::int64_t ranks, std::int64_t token_bytes,
                          std::int64_t multiprocessors) {
  const QueueExtents at = extents(ranks, token_bytes, multiprocessors);
  const std::int64_t slots = product(at.channels, at.peers);
  const std::int64_t heads = product(slots, 2 * at.nodes + 3, kInt);
  const std::int64_t tokens = product(slots, queues.nvlink_receive, queued_token(token_bytes));
  return Bytes{align_up(detail::checked_add(heads, tokens), kLine)};
}

Bytes deep_ep_rdma_hint(const DeepEpQueues& queues, std::int64_t ranks, std::int64_t token_bytes,
                        std::int64_t multiprocessors) {
  const QueueExtents at = extents(ranks, token_bytes, multiprocessors);
  if (ranks <= kNvlinkPeers) {
    return Bytes{0};
  }
  constexpr std::int64_t kTail = 16;  // an int4 behind each token
  const std::int64_t slots = product(at.channels, at.nodes);
  const std::int64_t heads = product(slots, kNvlinkPeers * 2 + 2, 2, kInt);
  const std::int64_t received = align_up(queues.rdma_receive, queues.rdma_send);
  const std::int64_t tokens = product(2, slots, received, queued_token(token_bytes) + kTail);
  return Bytes{align_up(detail::checked_add(heads, tokens), kLine)};
}

Bytes deep_ep_low_latency_hint(const DispatchShape& shape) {
  check_shape("DeepEP, low latency", shape);
  constexpr std::int64_t kHead = 16;
  const std::int64_t scales = product(shape.hidden / kScaleGroup, kFloat);
  const std::int64_t half = product(kHalf, shape.hidden);
  const std::int64_t dispatch = kHead + std::max(half, shape.hidden + scales);
  const std::int64_t combine = scales + half;
  const std::int64_t slots = product(shape.experts, shape.tokens);
  const std::int64_t send = std::max(product(shape.tokens, dispatch), product(slots, combine));
  const std::int64_t receive = std::max(product(slots, dispatch), product(slots, combine));
  const std::int64_t signals = align_up(product(shape.experts, kInt), kLine);
  const std::int64_t total = product(2, send + receive + signals);
  return Bytes{(total + kLine) / kLine * kLine};  // one line more where it is aligned already
}

std::vector<Buffer> deep_ep_buffer(Bytes nvlink, Bytes rdma) {
  constexpr Bytes kWorkspace = 32 * kMiB;  // LEGACY_NUM_WORKSPACE_BYTES
  constexpr std::int64_t kSignals = 160;   // barriers and pointers behind the buffer
  std::vector<Buffer> buffers;
  if (nvlink > Bytes{0}) {
    buffers.push_back(
        from_driver("DeepEP NVLink buffer", "queues + 160", nvlink.count() + kSignals));
  }
  buffers.push_back(kept("DeepEP workspace", "32 MiB", kWorkspace, Backing::kDriver));
  if (rdma > Bytes{0}) {
    buffers.push_back(
        from_symmetric_heap("DeepEP RDMA buffer", "up(RDMA + NVSHMEM's own, 512 MiB)", rdma));
  }
  return buffers;
}

std::vector<Buffer> deep_ep_low_latency_tensors(const DispatchShape& shape, Payload payload) {
  check_shape("DeepEP, low latency", shape);
  const std::int64_t rows = product(local_experts(shape), shape.ranks, shape.tokens);
  std::vector<Buffer> buffers{{"dispatched tokens", "E_l x n x T x H x b",
                               Bytes{product(rows, value_bytes(shape, payload))}}};
  if (payload != Payload::kBf16) {
    buffers.push_back({"scales of dispatched tokens", "E_l x n x T x ceil(H/128) x 4",
                       Bytes{product(rows, scale_bytes(shape, payload))}});
  }
  buffers.push_back({"sources of dispatched tokens", "E_l x n x T x 4 + E_l x n x 8 + E_l x 4",
                     Bytes{product(rows, kInt) + product(local_experts(shape), shape.ranks, kLong) +
                           product(local_experts(shape), kInt)}});
  buffers.push_back(
      {"combined tokens", "T x H x 2", Bytes{product(shape.tokens, shape.hidden, kHalf)}});
  return buffers;
}

std::vector<Buffer> deep_ep_normal_tensors(const DispatchShape& shape, Payload payload,
                                           std::int64_t received) {
  check_shape("DeepEP", shape);
  ShapeCheck{"DeepEP"}.countable("received tokens", received).raise_if_any();
  std::vector<Buffer> buffers{
      {"dispatched tokens", "R x H x b", Bytes{product(received, value_bytes(shape, payload))}}};
  if (payload != Payload::kBf16) {
    buffers.push_back({"scales of dispatched tokens", "R x ceil(H/128) x 4",
                       Bytes{product(received, scale_bytes(shape, payload))}});
  }
  buffers.push_back({"experts and weights of dispatched tokens", "R x k x (8 + 4)",
                     Bytes{product(received, shape.experts_per_token, kLong + kFloat)}});
  buffers.push_back(
      {"combined tokens", "T x H x 2", Bytes{product(shape.tokens, shape.hidden, kHalf)}});
  return buffers;
}

std::vector<Buffer> deep_ep_elastic(const DispatchShape& shape, Payload payload,
                                    const ElasticTopology& topology) {
  check_shape("DeepEP elastic buffer", shape);
  ShapeCheck{"DeepEP elastic buffer"}
      .between("NVLink domains", topology.scale_out, 1, shape.ranks)
      .raise_if_any();
  constexpr std::int64_t kAlign = 32;
  constexpr std::int64_t kFp8Group = 32;
  constexpr std::int64_t kInFlight = 1280;  // slots a scale-out peer has beside T
  constexpr std::int64_t kWorkspaceBytes = 12'820'528;
  const std::int64_t k = shape.experts_per_token;
  const std::int64_t tokens = shape.tokens;
  const std::int64_t scales =
      payload == Payload::kFp8 ? product(kFloat, div_ceil(shape.hidden, kFp8Group)) : 0;
  const std::int64_t sent = align_up(value_bytes(shape, payload), kAlign) +
                            align_up(scales, kAlign) + align_up(k * kLong + (1 + k) * kInt, kAlign);
  const std::int64_t returned =
      align_up(product(kHalf, shape.hidden), kAlign) + align_up(k * kLong, kAlign);
  std::int64_t dispatch = 0;
  std::int64_t combine = 0;
  if (topology.scale_out == 1) {
    const std::int64_t staged = topology.nvlink ? 0 : shape.ranks;
    const std::int64_t results = topology.reduces_at_sender ? std::min(shape.ranks, k) : k;
    dispatch = product(staged + shape.ranks, tokens, sent);
    combine = product(results + staged, tokens, returned);
  } else {
    const std::int64_t out = topology.scale_out;
    const std::int64_t up = div_ceil(shape.ranks, out);
    const std::int64_t forwarded = product(out, tokens + kInFlight);
    dispatch = product(product(up, out, tokens) + tokens + forwarded, sent);
    combine = product(product(std::min(up, k), out, tokens) + product(std::min(out, k), tokens) +
                          product(forwarded, topology.reduces_at_sender ? 1 : k),
                      returned);
  }
  return {
      kept("DeepEP elastic buffer", "up(max(dispatch, combine), 2 MiB)",
           align_up(Bytes{std::max(dispatch, combine)}, kGranule), Backing::kSymmetric),
      kept("DeepEP workspace", "up(12,820,528, 2 MiB)", align_up(Bytes{kWorkspaceBytes}, kGranule),
           Backing::kSymmetric),
      kept("DeepEP host workspace", "12,820,528", Bytes{kWorkspaceBytes}, Backing::kPinnedHost)};
}

std::vector<Buffer> pplx(const DispatchShape& shape, Payload payload, std::int64_t data_parallel) {
  check_shape("pplx", shape);
  ShapeCheck{"pplx"}.between("data-parallel ranks", data_parallel, 1, shape.ranks).raise_if_any();
  constexpr std::int64_t kAlign = 16;
  constexpr std::int64_t kSignal = 8;
  constexpr std::int64_t kTables = 5;
  const std::int64_t groups = shape.ranks / data_parallel;
  const std::int64_t token =
      align_up(value_bytes(shape, payload) + scale_bytes(shape, payload) + kInt, kAlign);
  const std::int64_t rows = product(local_experts(shape), groups, shape.tokens);
  const std::int64_t dispatch = product(shape.tokens + rows, token);
  const std::int64_t combine = product(
      product(rows, shape.hidden) + product(shape.tokens, shape.experts, shape.hidden), kFloat);
  const std::int64_t signals =
      kSignal * (shape.tokens + shape.ranks + product(local_experts(shape), groups));
  return {from_symmetric_heap("pplx buffers",
                              "(T + E_l x g x T) x token + (E_l x g x T + T x E) x H x 4 + signals",
                              Bytes{dispatch + combine + signals}),
          from_driver("pplx tables", "5 x E_l x g x T x 4", product(kTables, rows, kInt))};
}

std::vector<Buffer> nvlink_two_sided(const DispatchShape& shape, int multiprocessors) {
  check_shape("NVLink all-to-all", shape);
  ShapeCheck{"NVLink all-to-all"}.between("SMs", multiprocessors, 1, 1024).raise_if_any();
  constexpr Bytes kQueue = 2 * kMiB;
  const std::int64_t channels =
      std::max<std::int64_t>(1, multiprocessors / 2 / (2 * div_ceil(shape.ranks, kNvlinkPeers)));
  return {kept("all-to-all queues", fmt::format("2 MiB x n x {} channels", channels),
               kQueue * product(shape.ranks, channels), Backing::kSymmetric),
          kept("all-to-all preparation", "1 MiB x n", align_up(kMiB * shape.ranks, kGranule),
               Backing::kSymmetric)};
}

std::vector<Buffer> nvlink_one_sided(const DispatchShape& shape, Payload payload) {
  check_shape("NVLink all-to-all", shape);
  constexpr std::int64_t kCounters = 3;  // a rank: sent, received, flags
  const std::int64_t slots = product(shape.ranks, shape.tokens);
  const std::int64_t sent = value_bytes(shape, payload) + scale_bytes(shape, payload) +
                            shape.experts_per_token * (kInt + kFloat);
  const std::int64_t bytes = align_up(product(shape.ranks, kCounters, kInt), kLine) +
                             align_up(product(slots, sent), kLine) +
                             align_up(product(slots, kHalf, shape.hidden), kLine);
  return {kept("all-to-all buffer", "n x T x (token + k x 8) + n x T x H x 2 + counters",
               align_up(Bytes{bytes}, kGranule), Backing::kSymmetric)};
}

std::vector<Buffer> mooncake_ep(const DispatchShape& shape) {
  check_shape("Mooncake EP", shape);
  constexpr std::int64_t kHead = 32;
  constexpr std::int64_t kCopies = 4;
  const std::int64_t signals = product(kCopies, kInt, shape.experts);
  const std::int64_t tokens =
      product(kCopies, shape.experts, shape.tokens, kHead + kHalf * shape.hidden);
  return {from_driver("Mooncake EP buffer", "16E + 4 x E x T x (32 + 2H) + 32 MiB",
                      detail::checked_add(signals + 32 * kMiB.count(), tokens))};
}

std::vector<Buffer> nixl_ep(const DispatchShape& shape, std::int64_t most_ranks) {
  check_shape("NIXL EP", shape);
  ShapeCheck{"NIXL EP"}
      .between("most ranks", most_ranks, shape.ranks, std::int64_t{1} << 16)
      .raise_if_any();
  DispatchShape most = shape;
  most.ranks = most_ranks;
  most.experts = product(most_ranks, local_experts(shape));
  return {from_driver("NIXL EP buffer", "low-latency DeepEP of the most ranks",
                      deep_ep_low_latency_hint(most).count())};
}

std::vector<Buffer> mega_moe(const DispatchShape& shape, Payload payload, std::int64_t width) {
  DispatchShape padded = shape;
  check_shape("mega MoE", shape);
  ShapeCheck{"mega MoE"}.between("expert width", width, 1, std::int64_t{1} << 24).raise_if_any();
  constexpr std::int64_t kAlign = 384;
  constexpr std::int64_t kScaleValues = 32;
  constexpr std::int64_t kScalePadding = 16;  // rows of 8 padded to 128
  padded.tokens = align_up(shape.tokens, kAlign);
  const std::int64_t tokens = padded.tokens;
  const std::int64_t k = shape.experts_per_token;
  const bool scaled = payload != Payload::kBf16;
  const std::int64_t element = scaled ? 1 : 2;
  const std::int64_t ring = mega_ring(padded);
  const std::int64_t input =
      product(tokens, product(shape.hidden, element) + (scaled ? shape.hidden / kScaleValues : 0) +
                          k * (kLong + kFloat));
  const std::int64_t rows = product(ring, product(shape.hidden + width, element) + kFloat);
  const std::int64_t scales =
      scaled ? product(ring, kScalePadding, (shape.hidden + width) / kScaleValues) : 0;
  const std::int64_t combined = product(k, tokens, shape.hidden, kHalf);
  const std::int64_t local = local_experts(shape);
  const std::int64_t workspace =
      product(16, shape.experts) + product(8, local) + product(16, ring / 8) +
      product(kInt, local, shape.ranks, shape.ranks, tokens) + product(12, ring);
  return {
      kept("mega MoE buffer",
           "T x (H x b + H/32 + 12k) + R x ((H + I) x b + 4) + 16R x (H + I)/32 + k x T x H x 2 "
           "+ counters",
           align_up(Bytes{input + rows + scales + combined + workspace}, kGranule),
           Backing::kSymmetric)};
}

std::vector<Buffer> gathered_tokens(const DispatchShape& shape, std::int64_t element_bytes) {
  check_shape("all-gather of tokens", shape);
  ShapeCheck{"all-gather of tokens"}.between("element bytes", element_bytes, 1, 8).raise_if_any();
  const std::int64_t rows = product(shape.ranks, shape.tokens);
  return {{"gathered hidden states", "n x T x H x b",
           Bytes{product(rows, shape.hidden, element_bytes)}},
          {"gathered router logits", "n x T x E x b",
           Bytes{product(rows, shape.experts, element_bytes)}}};
}

}  // namespace oomcast::comm
