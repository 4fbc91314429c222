// Buffers of SGLang's and TensorRT-LLM's own attention paths.
#include <fmt/format.h>

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/kernels/attention.hpp"
#include "sim/kernels/attention_shape.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kInt = 4;
constexpr std::int64_t kTrtllmAlignment = 128;

// A buffer rounded to TensorRT-LLM's alignment.
Buffer part(std::string_view name, std::string formula, std::int64_t bytes) {
  return {name, std::move(formula), Bytes{align_up(bytes, kTrtllmAlignment)},
          Lifetime::kPersistent};
}

std::vector<Buffer> generation_parts(const TrtllmAttention& attention, const models::GpuSpec& gpu) {
  const AttentionBatch& batch = attention.batch;
  const std::int64_t sequence_heads = product(batch.sequences, batch.query_heads);
  const std::int64_t tiles =
      std::max({attention.least_tiles, div_ceil(gpu.sm_count, sequence_heads),
                div_ceil(gpu.sm_count, batch.query_heads)});
  const std::int64_t rows = product(sequence_heads, tiles);
  return {part("partial outputs", fmt::format("b x B x H x D x tiles={}", tiles),
               product(attention.element_bytes, rows, batch.head_dim)),
          part("partial sums", "4 x B x H x tiles", product(kFloat, rows)),
          part("partial maxima", "4 x B x H x tiles", product(kFloat, rows))};
}

std::vector<Buffer> context_parts(const TrtllmAttention& attention) {
  const AttentionBatch& batch = attention.batch;
  const std::int64_t offsets = product(batch.sequences + 1, kInt);
  std::vector<Buffer> parts = {
      part("query offsets", "(B + 1) x 4", offsets), part("KV offsets", "(B + 1) x 4", offsets),
      part("mask offsets", "(B + 1) x 4", offsets), part("tile counter", "4", kInt)};
  if (attention.fp8_context) {
    const std::int64_t width = product(batch.query_heads, batch.head_dim) +
                               product(batch.kv_heads, batch.head_dim + batch.value_dim);
    parts.push_back(part("fp8 queries, keys and values", "tokens x (q + k + v)",
                         product(batch.query_tokens, width)));
  }
  return parts;
}

}  // namespace

std::vector<Buffer> sglang_triton_decode(const AttentionBatch& batch, std::int64_t max_kv_splits) {
  check_batch("SGLang Triton decode", batch);
  ShapeCheck{"SGLang Triton decode"}.positive("max KV splits", max_kv_splits).raise_if_any();
  const std::int64_t rows = product(batch.query_tokens, batch.query_heads, max_kv_splits);
  return {{"split outputs", fmt::format("tokens x H x s={} x Dv x 4", max_kv_splits),
           Bytes{product(rows, batch.value_dim, kFloat)}, Lifetime::kPersistent},
          {"split log-sum-exp", fmt::format("tokens x H x s={} x 4", max_kv_splits),
           Bytes{product(rows, kFloat)}, Lifetime::kPersistent}};
}

std::vector<Buffer> sglang_fa3_metadata(std::int64_t max_batch, std::int64_t context_length,
                                        std::int64_t page_size) {
  ShapeCheck{"SGLang FlashAttention 3"}
      .positive("max batch", max_batch)
      .positive("context length", context_length)
      .positive("page size", page_size)
      .raise_if_any();
  return {
      {"page table", "max_bs x ceil(context / page) x 4",
       Bytes{product(max_batch, div_ceil(context_length, page_size), kInt)}, Lifetime::kPersistent},
      {"sequence lengths", "max_bs x 4", Bytes{product(max_batch, kInt)}, Lifetime::kPersistent},
      {"query and KV offsets", "2 x (max_bs + 1) x 4", Bytes{product(2, max_batch + 1, kInt)},
       Lifetime::kPersistent}};
}

std::vector<Buffer> trtllm_attention(const TrtllmAttention& attention, const models::GpuSpec& gpu) {
  check_batch("TensorRT-LLM attention", attention.batch);
  ShapeCheck{"TensorRT-LLM attention"}
      .between("element bytes", attention.element_bytes, 1, 8)
      .positive("least tiles", attention.least_tiles)
      .raise_if_any();
  auto generation = generation_parts(attention, gpu);
  auto context = context_parts(attention);
  return device_bytes(context) > device_bytes(generation) ? context : generation;
}

}  // namespace oomcast::kernels
