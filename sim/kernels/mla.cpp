#include <fmt/format.h>

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/kernels/attention.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kFloat = 4;

void check_batch(const char* kernel, const MlaBatch& batch) {
  constexpr std::int64_t kMostHeads = 1 << 20;
  ShapeCheck{kernel}
      .positive("sequences", batch.sequences)
      .positive("query tokens", batch.query_tokens)
      .between("query heads", batch.query_heads, 1, kMostHeads)
      .between("KV heads", batch.kv_heads, 1, std::max<std::int64_t>(batch.query_heads, 1))
      .between("latent dimension", batch.latent_dim, 1, kMostHeads)
      .positive("context", batch.max_context)
      .raise_if_any();
}

std::vector<Buffer> flashmla(std::int64_t splits, std::int64_t rows, std::int64_t dim,
                             const char* row_formula) {
  return {{"split outputs", fmt::format("s={} x {} x {} x 4", splits, row_formula, dim),
           Bytes{product(splits, rows, dim, kFloat)}},
          {"split log-sum-exp", fmt::format("s={} x {} x 4", splits, row_formula),
           Bytes{product(splits, rows, kFloat)}}};
}

}  // namespace

std::vector<Buffer> flashmla_dense(const MlaBatch& batch, const models::GpuSpec& gpu) {
  check_batch("FlashMLA dense", batch);
  constexpr std::int64_t kQueryTile = 64;
  constexpr std::int64_t kPartBytes = 32;
  const std::int64_t rows = product(batch.query_tokens, batch.query_heads) / batch.kv_heads;
  const std::int64_t parts =
      std::max<std::int64_t>(gpu.sm_count / batch.kv_heads / div_ceil(rows, kQueryTile), 1);
  auto buffers =
      flashmla(batch.sequences + parts, product(batch.kv_heads, rows), batch.latent_dim, "Sq x Hq");
  buffers.push_back({"scheduler metadata", fmt::format("parts={} x 32 + (B + 1) x 4", parts),
                     Bytes{parts * kPartBytes + (batch.sequences + 1) * kFloat}});
  return buffers;
}

std::vector<Buffer> flashmla_sparse(const MlaBatch& batch, const models::GpuSpec& gpu,
                                    bool head_128_kernel) {
  check_batch("FlashMLA sparse", batch);
  constexpr std::int64_t kQueryTile = 64;
  std::int64_t parts = gpu.sm_count / batch.query_tokens;
  if (gpu.compute_major < 10) {
    parts /= div_ceil(batch.query_heads, kQueryTile);
  } else if (head_128_kernel) {
    parts /= 2;  // two blocks work on the heads of one token
  }
  const std::int64_t splits = batch.sequences + std::max<std::int64_t>(parts, 1);
  return flashmla(splits, product(batch.query_tokens, batch.query_heads), batch.latent_dim,
                  "Sq x Hq");
}

std::vector<Buffer> triton_mla(const MlaBatch& batch, const models::GpuSpec& gpu,
                               bool splits_by_context) {
  check_batch("Triton MLA", batch);
  constexpr std::int64_t kFixedSplits = 4;
  constexpr std::int64_t kContextPerSplit = 512;
  const std::int64_t splits =
      splits_by_context ? std::min(next_power_of_two(div_ceil(batch.max_context, kContextPerSplit)),
                                   std::int64_t{2} * gpu.sm_count)
                        : kFixedSplits;
  return {{"split outputs and log-sum-exp",
           fmt::format("B x Hq x s={} x ({} + 1) x 4", splits, batch.latent_dim),
           Bytes{product(batch.sequences, batch.query_tokens, batch.query_heads, splits,
                         batch.latent_dim + 1, kFloat)}}};
}

std::vector<Buffer> cutlass_mla(const MlaBatch& batch, std::int64_t kv_splits) {
  check_batch("CUTLASS MLA", batch);
  ShapeCheck{"CUTLASS MLA"}.positive("KV splits", kv_splits).raise_if_any();
  constexpr std::int64_t kHeads = 128;  // the kernel pads to them
  const Bytes needed{
      product(kFloat * batch.latent_dim + kFloat, kHeads, kv_splits, batch.sequences)};
  return {{"workspace", "max(128 MiB, (4 x 512 + 4) x 128 x s x B)", std::max(128 * kMiB, needed),
           Lifetime::kPersistent}};
}

std::int64_t mla_prefill_tokens(const MlaPrefill& prefill) {
  ShapeCheck{"MLA prefill"}
      .positive("max model length", prefill.max_model_len)
      .positive("max sequences", prefill.max_sequences)
      .positive("block size", prefill.block_size)
      .raise_if_any();
  constexpr std::int64_t kMostTokens = 65'536;
  const std::int64_t one_block_each = product(prefill.max_sequences, prefill.block_size);
  return std::max(std::min(std::max(product(8, prefill.max_model_len), product(4, one_block_each)),
                           kMostTokens),
                  one_block_each);
}

std::vector<Buffer> mla_prefill(const MlaPrefill& prefill) {
  const std::int64_t tokens = mla_prefill_tokens(prefill);
  ShapeCheck{"MLA prefill"}
      .positive("heads", prefill.heads)
      .between("TP ranks", prefill.tensor_ranks, 1, std::max<std::int64_t>(prefill.heads, 1))
      .positive("latent dimension", prefill.latent_dim)
      .countable("rope dimension", prefill.rope_dim)
      .positive("nope dimension", prefill.nope_dim)
      .positive("value dimension", prefill.value_dim)
      .between("element bytes", prefill.element_bytes, 1, 8)
      .raise_if_any();
  const std::int64_t heads = div_ceil(prefill.heads, prefill.tensor_ranks);
  const std::int64_t b = prefill.element_bytes;
  return {{"gathered latents", fmt::format("W={} x (latent + rope) x b", tokens),
           Bytes{product(tokens, prefill.latent_dim + prefill.rope_dim, b)}, Lifetime::kPersistent},
          {"up-projected keys and values", "W x heads/tp x (nope + v) x b",
           Bytes{product(tokens, heads, prefill.nope_dim + prefill.value_dim, b)}},
          {"concatenated keys", "W x heads/tp x (nope + rope) x b",
           Bytes{product(tokens, heads, prefill.nope_dim + prefill.rope_dim, b)}}};
}

std::vector<Buffer> indexer_logits(std::int64_t query_tokens, std::int64_t context_tokens,
                                   Bytes limit) {
  ShapeCheck{"sparse indexer"}
      .positive("query tokens", query_tokens)
      .positive("context tokens", context_tokens)
      .countable("limit", limit.count())
      .raise_if_any();
  // At least one row is needed, however long the context.
  const Bytes row{product(context_tokens, kFloat)};
  const std::int64_t rows =
      limit > Bytes{0} ? std::clamp<std::int64_t>(limit / row, 1, query_tokens) : query_tokens;
  return {{"indexer logits", fmt::format("q={} x kv x 4", rows), row * rows}};
}

}  // namespace oomcast::kernels
