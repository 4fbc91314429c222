#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/kernels/attention.hpp"
#include "sim/kernels/attention_shape.hpp"
#include "sim/kernels/preset.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kMostSplits = 128;
constexpr std::int64_t kFloat = 4;

bool fills(std::int64_t blocks, std::int64_t slots) {
  return static_cast<float>(blocks) >= 0.8F * static_cast<float>(slots);
}

// Single precision, as the original: ties between splits fall as there. `same_blocks_skipped`:
// splits that leave as many KV blocks a split as one split less count for nothing.
std::int64_t best_splits(std::int64_t blocks, std::int64_t slots, std::int64_t kv_blocks,
                         bool same_blocks_skipped) {
  const std::int64_t most = std::min({kMostSplits, slots, kv_blocks});
  std::vector<float> efficiency;
  float best = 0.0F;
  for (std::int64_t splits = 1; splits <= most; ++splits) {
    const bool skipped = same_blocks_skipped && splits > 1 &&
                         div_ceil(kv_blocks, splits) == div_ceil(kv_blocks, splits - 1);
    const float waves = static_cast<float>(blocks * splits) / static_cast<float>(slots);
    efficiency.push_back(skipped ? -1.0F : waves / std::ceil(waves));
    best = std::max(best, efficiency.back());
  }
  for (std::int64_t splits = 1; splits <= most; ++splits) {
    if (efficiency[static_cast<std::size_t>(splits - 1)] >= 0.85F * best) {
      return splits;
    }
  }
  return 1;
}

struct Tile {
  std::int64_t query;
  std::int64_t kv;
};

// Causal, 16-bit, paged KV through TMA (hopper/tile_size.h).
Tile flash_attention_3_tile(std::int64_t head_dim, std::int64_t value_dim) {
  if (value_dim > 256) {
    return {64, 64};  // MLA: 64 rotary and 512 latent dimensions
  }
  if (head_dim <= 96) {
    return {192, 128};
  }
  return {128, head_dim <= 128 ? 128 : head_dim <= 192 ? 112 : 80};
}

void add_log_sum_exp(std::vector<Buffer>& buffers, const AttentionBatch& batch) {
  buffers.push_back({"log-sum-exp", "H x tokens x 4",
                     Bytes{product(batch.query_heads, batch.query_tokens, kFloat)}});
}

}  // namespace

void check_batch(const char* kernel, const AttentionBatch& batch) {
  constexpr std::int64_t kMostHeads = 1 << 20;
  ShapeCheck{kernel}
      .positive("sequences", batch.sequences)
      .positive("query tokens", batch.query_tokens)
      .between("longest query", batch.max_query_tokens, 1, batch.query_tokens)
      .positive("context", batch.max_context)
      .between("query heads", batch.query_heads, 1, kMostHeads)
      .between("KV heads", batch.kv_heads, 1, std::max<std::int64_t>(batch.query_heads, 1))
      .between("head dimension", batch.head_dim, 1, kMostHeads)
      .between("value dimension", batch.value_dim, 1, kMostHeads)
      .raise_if_any();
}

std::int64_t flash_attention_2_splits(const AttentionBatch& batch, const models::GpuSpec& gpu) {
  check_batch("FlashAttention 2", batch);
  constexpr std::int64_t kQueryTile = 64;
  const std::int64_t kv_tile = batch.head_dim <= 64 ? 256 : batch.head_dim <= 128 ? 128 : 64;
  // A decode step with grouped queries treats the group as query rows.
  const bool grouped = batch.max_query_tokens == 1 && batch.query_heads > batch.kv_heads;
  const std::int64_t heads = grouped ? batch.kv_heads : batch.query_heads;
  const std::int64_t rows = grouped ? batch.query_heads / batch.kv_heads : batch.max_query_tokens;
  const std::int64_t blocks = product(batch.sequences, heads, div_ceil(rows, kQueryTile));
  const std::int64_t slots = std::int64_t{2} * gpu.sm_count;
  return fills(blocks, slots)
             ? 1
             : best_splits(blocks, slots, div_ceil(batch.max_context, kv_tile), true);
}

std::vector<Buffer> flash_attention_2(const AttentionBatch& batch, const models::GpuSpec& gpu) {
  const std::int64_t splits = flash_attention_2_splits(batch, gpu);
  std::vector<Buffer> buffers;
  add_log_sum_exp(buffers, batch);
  if (splits > 1) {
    const std::int64_t dim = batch.head_dim <= 192 ? align_up(batch.head_dim, 32) : 256;
    const std::int64_t rows =
        product(splits, batch.sequences, batch.query_heads, batch.max_query_tokens);
    buffers.push_back({"split outputs", fmt::format("s={} x B x H x Sq x D x 4", splits),
                       Bytes{product(rows, dim, kFloat)}});
    buffers.push_back({"split log-sum-exp", fmt::format("s={} x B x H x Sq x 4", splits),
                       Bytes{product(rows, kFloat)}});
  }
  return buffers;
}

std::int64_t flash_attention_3_splits(const AttentionBatch& batch, const models::GpuSpec& gpu,
                                      const FlashAttention3Options& options) {
  check_batch("FlashAttention 3", batch);
  constexpr std::int64_t kMostFixedSplits = 256;
  ShapeCheck{"FlashAttention 3"}
      .between("fixed splits", options.fixed_splits, 0, kMostFixedSplits)
      .between("KV element bytes", options.kv_element_bytes, 1, 4)
      .between("window", options.window, 0, std::numeric_limits<std::int32_t>::max())
      .raise_if_any();
  if (options.fixed_splits > 0) {
    return options.fixed_splits;
  }
  // The heuristic's own figure, whatever the card has.
  constexpr std::int64_t kL2Bytes = std::int64_t{50} << 20;
  constexpr std::int64_t kLeastKvBlocks = 5;
  const Tile tile = flash_attention_3_tile(batch.head_dim, batch.value_dim);
  const std::int64_t packed_rows =
      product(batch.max_query_tokens, batch.query_heads / batch.kv_heads);
  const std::int64_t query_blocks = div_ceil(packed_rows, tile.query);
  const std::int64_t loaded = options.window == 0
                                  ? batch.max_context
                                  : std::min(batch.max_context, options.window + 1 + tile.query);
  const std::int64_t kv_blocks = div_ceil(loaded, tile.kv);
  const std::int64_t blocks =
      product(options.varlen ? 1 : batch.sequences, batch.kv_heads, query_blocks);
  if (fills(blocks, gpu.sm_count)) {
    const std::int64_t head_bytes =
        product(batch.max_context, batch.head_dim + batch.value_dim, options.kv_element_bytes);
    const bool reads_kv_twice = head_bytes > kL2Bytes && !options.causal && options.window == 0 &&
                                query_blocks >= std::int64_t{2} * gpu.sm_count;
    return reads_kv_twice ? std::min(div_ceil(head_bytes, kL2Bytes), kMostSplits) : 1;
  }
  return kv_blocks < kLeastKvBlocks ? 1 : best_splits(blocks, gpu.sm_count, kv_blocks, false);
}

std::vector<Buffer> flash_attention_3(const AttentionBatch& batch, const models::GpuSpec& gpu,
                                      const FlashAttention3Options& options) {
  const std::int64_t splits = flash_attention_3_splits(batch, gpu, options);
  std::vector<Buffer> buffers;
  add_log_sum_exp(buffers, batch);
  if (splits > 1) {
    const char* tokens = options.varlen ? "tokens" : "B x Sq";
    const std::int64_t rows = product(
        splits, batch.query_heads,
        options.varlen ? batch.query_tokens : product(batch.sequences, batch.max_query_tokens));
    buffers.push_back({"split outputs", fmt::format("s={} x H x {} x Dv x 4", splits, tokens),
                       Bytes{product(rows, batch.value_dim, kFloat)}});
    buffers.push_back({"split log-sum-exp", fmt::format("s={} x H x {} x 4", splits, tokens),
                       Bytes{product(rows, kFloat)}});
  }
  if (options.varlen) {
    constexpr std::int64_t kVectors = 4;  // splits, blocks, order and KV heads a sequence
    buffers.push_back({"scheduler metadata", "(up(B, 4) x 4 + 1) x 4",
                       Bytes{product(align_up(batch.sequences, 4) * kVectors + 1, kFloat)}});
  }
  return buffers;
}

std::int64_t vllm_graph_splits(const Version& version) {
  return preset_count({"kernels/attention.json", "vllm.flash_attention_graph_splits", version})
      .value_or(1);
}

}  // namespace oomcast::kernels
