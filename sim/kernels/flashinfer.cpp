#include <fmt/format.h>

#include <string_view>

#include "sim/core/error.hpp"
#include "sim/kernels/attention.hpp"
#include "sim/kernels/preset.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kPartAlignment = 16;

std::string_view preset_name(const FlashInferEngine& engine) {
  const auto by_engine = [&](std::string_view sglang, std::string_view vllm) {
    return engine.sglang ? sglang : vllm;
  };
  if (engine.deterministic) {
    return by_engine("sglang.flashinfer_deterministic", "vllm.flashinfer_batch_invariant");
  }
  switch (engine.use) {
    case FlashInferUse::kMla:
      return by_engine("sglang.flashinfer", "vllm.flashinfer_mla");
    case FlashInferUse::kTrtllmMla:
      return by_engine("sglang.trtllm_mla", "vllm.flashinfer_mla");
    case FlashInferUse::kTrtllmMha:
      return by_engine("sglang.trtllm_mha", "vllm.flashinfer");
    case FlashInferUse::kPaged:
      break;
  }
  return by_engine(engine.large_workspace ? "sglang.flashinfer_large" : "sglang.flashinfer",
                   "vllm.flashinfer");
}

Bytes parts(std::initializer_list<std::int64_t> sizes) {
  Bytes sum;
  for (const std::int64_t size : sizes) {
    sum += Bytes{align_up(size, kPartAlignment)};
  }
  return sum;
}

}  // namespace

std::vector<Buffer> flashinfer(const FlashInferEngine& engine) {
  constexpr std::int64_t kMostWrappers = 1 << 16;
  ShapeCheck{"FlashInfer"}
      .between("wrappers", engine.wrappers, 0, kMostWrappers)
      .between("graph wrappers", engine.graph_wrappers, 0, kMostWrappers)
      .raise_if_any();
  const std::string_view name = preset_name(engine);
  const auto size = preset_bytes({"kernels/attention.json", name, engine.version});
  std::vector<Buffer> buffers;
  buffers.push_back({"float workspace", fmt::format("constant {}", name), size.value_or(Bytes{0}),
                     Lifetime::kPersistent});
  const bool trtllm_kernels =
      engine.use == FlashInferUse::kTrtllmMla || engine.use == FlashInferUse::kTrtllmMha;
  if (trtllm_kernels) {
    constexpr std::int64_t kMostSequences = 32768;
    buffers.push_back(
        {"KV lengths", "32768 x 4", Bytes{kMostSequences * kFloat}, Lifetime::kPersistent});
    return buffers;
  }
  const std::int64_t wrappers = engine.wrappers + engine.graph_wrappers;
  const std::string formula = fmt::format("{} wrappers x 8 MiB", wrappers);
  buffers.push_back({"planner buffers", formula, 8 * kMiB * wrappers, Lifetime::kPersistent});
  buffers.push_back({"planner buffers, host", formula, 8 * kMiB * wrappers, Lifetime::kPersistent,
                     Backing::kPinnedHost});
  return buffers;
}

Bytes flashinfer_decode_use(std::int64_t query_heads, std::int64_t padded_batch,
                            std::int64_t head_dim) {
  ShapeCheck{"FlashInfer decode"}
      .positive("query heads", query_heads)
      .positive("padded batch", padded_batch)
      .positive("head dimension", head_dim)
      .raise_if_any();
  return parts({product(query_heads, padded_batch, head_dim, kFloat),
                product(query_heads, padded_batch, kFloat)});
}

Bytes flashinfer_prefill_use(std::int64_t query_heads, std::int64_t padded_batch,
                             std::int64_t query_tile, std::int64_t value_dim) {
  ShapeCheck{"FlashInfer prefill"}
      .positive("query heads", query_heads)
      .positive("padded batch", padded_batch)
      .positive("query tile", query_tile)
      .positive("value dimension", value_dim)
      .raise_if_any();
  return parts({product(query_heads, padded_batch, query_tile, value_dim, kFloat),
                product(query_heads, padded_batch, query_tile, kFloat)});
}

Bytes flashinfer_persistent_use(std::int64_t kv_heads, std::int64_t tiles, std::int64_t head_dim,
                                const models::GpuSpec& gpu) {
  ShapeCheck{"FlashInfer persistent"}
      .positive("KV heads", kv_heads)
      .positive("query tiles", tiles)
      .positive("head dimension", head_dim)
      .raise_if_any();
  constexpr std::int64_t kSplitsPerSm = 4;
  const std::int64_t rows = product(kSplitsPerSm, gpu.sm_count, tiles, kv_heads);
  return parts({product(rows, head_dim, 2), product(rows, kFloat)});
}

Bytes flashinfer_mla_use(const models::GpuSpec& gpu) {
  constexpr std::int64_t kBlocksPerSm = 2;
  constexpr std::int64_t kQueryTile = 64;
  constexpr std::int64_t kLatentBytes = 512 * 2;
  const std::int64_t rows = product(kBlocksPerSm, gpu.sm_count, kQueryTile);
  return parts({product(rows, kLatentBytes), product(rows, kFloat)});
}

}  // namespace oomcast::kernels
