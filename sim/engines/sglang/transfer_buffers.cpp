#include "sim/engines/sglang/transfer_buffers.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "models/attention_kinds.hpp"

namespace oomcast::sglang {
namespace {

// disaggregation/utils.py, MetadataBuffers: output ids, cached tokens and a token's log-probability
// with its index (64 B each, the least that RDMA moves), the 128 best of them, the drafter's
// choices and its last hidden state, which is 16 floats without one; the room's number.
Bytes metadata_row() {
  constexpr std::int64_t kLeastTransfer = 64;
  constexpr std::int64_t kBest = 128;
  constexpr std::int64_t kDrafted = 16;
  constexpr std::int64_t kFloatBytes = 4;
  constexpr std::int64_t kInt64Bytes = 8;
  return Bytes{4 * kLeastTransfer + 2 * kBest * kFloatBytes + kDrafted * kFloatBytes +
               kDrafted * kInt64Bytes + kDrafted * kFloatBytes + kLeastTransfer};
}

// Where heads are divided differently on the two sides KV can be gathered on the way; a switch.
std::optional<Buffer> staging(const Deployment& deployment) {
  const auto given = deployment.launch.variable("SGLANG_DISAGG_STAGING_BUFFER");
  if (!given || *given == "0" || *given == "false") {
    return std::nullopt;
  }
  constexpr std::int64_t kSendQueues = 4;
  constexpr Bytes kOfQueue = kMiB * 64;
  constexpr Bytes kRing = kMiB * 4096;
  return deployment.role == Role::kPrefill
             ? Buffer{"staging of the send queues", "4 x 64 MiB", kOfQueue * kSendQueues,
                      Lifetime::kPersistent, Backing::kDriver}
             : Buffer{"staging ring", "4096 MiB", kRing, Lifetime::kPersistent, Backing::kDriver};
}

// A decode server copies the KV of retracted requests to the host: plain caches into a pool that is
// pinned at the start and holds the longest request (0.5.23), others into pageable memory.
bool has_host_pool(const Deployment& deployment) {
  return deployment.role == Role::kDecode && !has_mla(*deployment.model) &&
         !models::has_recurrent_state(*deployment.model) &&
         deployment.launch.text("disaggregation-decode-retraction-backup").value_or("host_pool") ==
             "host_pool";
}

}  // namespace

std::vector<Buffer> transfer_buffers(const Deployment& deployment, const CachePlan& plan,
                                     const CacheSizes& sizes) {
  if (deployment.role == Role::kMixed) {
    return {};
  }
  const std::int64_t rows = deployment.role == Role::kPrefill ? plan.max_running : plan.rows;
  std::vector<Buffer> buffers = {{"metadata of transfers", "2 x rows x row",
                                  metadata_row() * 2 * rows, Lifetime::kPersistent,
                                  Backing::kPinnedHost}};
  if (auto ring = staging(deployment)) {
    buffers.push_back(std::move(*ring));
  }
  if (has_host_pool(deployment)) {
    const Tokens longest =
        align_up(std::min(deployment.max_model_len, plan.tokens), deployment.page_size) +
        deployment.page_size;
    buffers.push_back({"KV of retracted requests", "(C + P) x cell",
                       Bytes{std::llround(sizes.full_token * static_cast<double>(longest.count()))},
                       Lifetime::kPersistent, Backing::kPinnedHost});
  }
  return buffers;
}

}  // namespace oomcast::sglang
