#include "sim/engines/vllm/graph_memory.hpp"

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/vllm/resident.hpp"

namespace oomcast::vllm {
namespace {

using models::AttentionKind;

constexpr Bytes kSmallestGraph{std::int64_t{1} << 20};  // what the engine counts at least per graph
constexpr Bytes kDriverStep{std::int64_t{2} << 20};

std::int64_t widest_mlp(const Deployment& deployment) {
  std::int64_t widest = 0;
  for (const auto& layer : deployment.model->layer_kinds) {
    widest = std::max({widest, layer.ffn.width, layer.ffn.shared_width, layer.ffn.expert_width});
  }
  return div_ceil(widest, deployment.tp);
}

// FlashAttention 3 splits a decode's keys over up to 32 blocks and keeps fp32 partial outputs:
// 32 x tokens x query heads x head dim x 4 B, made inside the largest full capture.
Bytes split_kv_buffer(const Deployment& deployment, std::int64_t tokens) {
  constexpr std::int64_t kSplits = 32;
  const bool flash3 =
      deployment.gpu.compute_major == 9 && deployment.attention_backend.rfind("FLASH_ATTN", 0) == 0;
  if (!flash3) {
    return Bytes{0};
  }
  std::int64_t widest = 0;
  for (const auto& layer : deployment.model->layer_kinds) {
    const auto& attention = layer.attention;
    const std::int64_t dim =
        attention.kind == AttentionKind::kMla ? attention.mla.kv_lora_rank : attention.head_dim;
    widest = std::max(widest, div_ceil(attention.heads, deployment.tp) * dim);
  }
  return Bytes{4} * detail::checked_mul(kSplits * tokens, widest);
}

struct DriverShare {
  Bytes piecewise_size;  // one captured size, all its pieces
  Bytes full_size;
};

DriverShare driver_share(const Deployment& deployment, int layers) {
  const StartupRules& rules = deployment.rules;
  // One piece before, between and after the attention calls.
  const std::int64_t pieces = layers + 1;
  const Bytes piecewise =
      (rules.graph_executable + rules.graph_node * rules.graph_nodes_per_piece) * pieces;
  const Bytes full =
      rules.graph_executable + rules.graph_node * (rules.graph_nodes_per_layer_full * layers);
  return {align_up(piecewise, kDriverStep), align_up(full, kDriverStep)};
}

}  // namespace

GraphMemory graph_memory(const Deployment& deployment, int stage_layers) {
  GraphMemory out;
  if (deployment.capture_sizes.empty()) {
    return out;
  }
  const std::int64_t element = models::bits_of(deployment.dtype) / 8;
  const auto full_sizes = deployment.full_capture_sizes();
  const bool piecewise = has_piecewise(deployment.cudagraph_mode);
  const DriverShare share = driver_share(deployment, stage_layers);
  const auto count = [](const std::vector<std::int64_t>& sizes) {
    return static_cast<std::int64_t>(sizes.size());
  };
  const std::int64_t piecewise_count = piecewise ? count(deployment.capture_sizes) : 0;
  const std::int64_t full_count = count(full_sizes);
  if (piecewise) {
    // Largest first into one pool: later sizes reuse it. 3I + 9H elements a token are alive across
    // the pieces; recorded pools are within 10 % of it on eight models.
    out.piecewise_pool =
        align_up(Bytes{element} *
                     detail::checked_mul(deployment.capture_sizes.back(),
                                         3 * widest_mlp(deployment) + 9 * deployment.model->hidden),
                 kDriverStep);
  }
  if (full_count > 0) {
    out.full_pool = align_up(split_kv_buffer(deployment, full_sizes.back()), kDriverStep);
  }
  out.stream_workspace = align_up(cublas_workspace(deployment.gpu), kDriverStep);
  out.driver = share.piecewise_size * piecewise_count + share.full_size * full_count;

  // The trial captures the two largest sizes of each mode; every further graph counts as the
  // second.
  const auto rest = [](std::int64_t graphs) { return std::max<std::int64_t>(graphs - 1, 0); };
  if (deployment.runner_v2) {
    // The second full sample is negative: capture empties the cache that its warm-up filled (the
    // split buffers and about 15 MiB), so the estimate counts the full pool twice.
    constexpr Bytes kWarmUp{std::int64_t{67} << 20};
    out.estimate = out.piecewise_pool + out.full_pool * 2 + kWarmUp +
                   share.piecewise_size * piecewise_count + kSmallestGraph * rest(full_count);
  } else {
    const Bytes first_piecewise =
        piecewise ? out.piecewise_pool + out.stream_workspace + share.piecewise_size : Bytes{0};
    const Bytes first_full = full_count > 0 ? out.full_pool + share.full_size : Bytes{0};
    out.estimate = std::max(first_piecewise, first_full) +
                   std::max(share.piecewise_size, kSmallestGraph) * rest(piecewise_count) +
                   std::max(share.full_size, kSmallestGraph) * rest(full_count);
  }
  return out;
}

}  // namespace oomcast::vllm
