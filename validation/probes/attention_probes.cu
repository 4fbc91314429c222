// Plain kernels that stand for split-KV attention: right in what they allocate and read, not in how
// fast they are.
#include <cuda_bf16.h>

#include "validation/probes/cuda_support.cuh"
#include "validation/probes/probes.hpp"
#include "validation/probes/workspace.cuh"
#include "validation/schedule/probe_shapes.hpp"

namespace oomcast::validation {
namespace {

constexpr int kDim = static_cast<int>(kHeadDim);

struct Attention {
  const __nv_bfloat16* query;  // [rows][heads][dim]
  const __nv_bfloat16* cache;  // keys and values: [context][2][kv heads][dim], a sequence a row
  float* partial;              // [rows][splits][heads][dim + 1]: output, then log-sum-exp
  std::int64_t context;        // keys that a row reads
  std::int64_t cache_rows;     // rows that have keys of their own: 1 where all share them
  int splits;
};

// A block a (row, head, split): online softmax over its part of the keys, a thread an element.
__global__ void attend(Attention of) {
  __shared__ float products[kDim];
  const std::int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int split = static_cast<int>(blockIdx.z);
  const int lane = static_cast<int>(threadIdx.x);
  const int kv_head = head / static_cast<int>(kHeads / kKvHeads);
  const std::int64_t part = (of.context + of.splits - 1) / of.splits;
  const std::int64_t first = part * split;
  const std::int64_t last = min(first + part, of.context);
  const __nv_bfloat16* cache = of.cache + (row % of.cache_rows) * of.context * 2 * kKvHeads * kDim;
  const float query = __bfloat162float(of.query[(row * kHeads + head) * kDim + lane]);
  float highest = -1e30f;
  float sum = 0;
  float out = 0;
  for (std::int64_t i = first; i < last; ++i) {
    const __nv_bfloat16* key = cache + (i * 2 * kKvHeads + kv_head) * kDim;
    products[lane] = query * __bfloat162float(key[lane]);
    __syncthreads();
    for (int half = kDim / 2; half > 0; half /= 2) {
      if (lane < half) {
        products[lane] += products[lane + half];
      }
      __syncthreads();
    }
    const float score = products[0] * 0.088388f;  // one over the root of 128
    __syncthreads();
    const float top = fmaxf(highest, score);
    const float scale = __expf(highest - top);
    const float weight = __expf(score - top);
    sum = sum * scale + weight;
    out = out * scale + weight * __bfloat162float(key[kKvHeads * kDim + lane]);
    highest = top;
  }
  float* partial = of.partial + ((row * of.splits + split) * kHeads + head) * (kDim + 1);
  partial[lane] = sum > 0 ? out / sum : 0;
  if (lane == 0) {
    partial[kDim] = sum > 0 ? highest + __logf(sum) : -1e30f;
  }
}

// Puts the splits of a row and head together.
__global__ void combine(const float* partial, __nv_bfloat16* out, int splits) {
  const std::int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x);
  const auto at = [&](int split) {
    return partial + ((row * splits + split) * kHeads + head) * (kDim + 1);
  };
  float highest = -1e30f;
  for (int split = 0; split < splits; ++split) {
    highest = fmaxf(highest, at(split)[kDim]);
  }
  float sum = 0;
  float value = 0;
  for (int split = 0; split < splits; ++split) {
    const float weight = __expf(at(split)[kDim] - highest);
    sum += weight;
    value += weight * at(split)[lane];
  }
  out[(row * kHeads + head) * kDim + lane] = __float2bfloat16(value / sum);
}

Values attention(std::int64_t rows, std::int64_t splits, std::int64_t context,
                 std::int64_t cache_rows) {
  constexpr std::int64_t kElement = 2;
  const Buffer query(rows * kHeads * kHeadDim * kElement);
  const Buffer out(rows * kHeads * kHeadDim * kElement);
  const Buffer cache(cache_rows * context * 2 * kKvHeads * kHeadDim * kElement);
  const Stream stream;
  for (const Buffer* buffer : {&query, &cache}) {
    check(cudaMemsetAsync(buffer->as<char>(), 0, static_cast<std::size_t>(buffer->bytes()),
                          stream.get()),
          "cudaMemset");
  }
  Workspace workspace;
  const Attention of{query.as<__nv_bfloat16>(),
                     cache.as<__nv_bfloat16>(),
                     workspace.take<float>(rows * splits * kHeads * (kHeadDim + 1)),
                     context,
                     cache_rows,
                     static_cast<int>(splits)};
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(kHeads),
                  static_cast<unsigned>(splits));
  const double seconds = seconds_of(stream, 3, [&](const Stream& on) {
    attend<<<grid, kDim, 0, on.get()>>>(of);
    combine<<<dim3(grid.x, grid.y), kDim, 0, on.get()>>>(of.partial, out.as<__nv_bfloat16>(),
                                                         of.splits);
    check(cudaGetLastError(), "a kernel");
  });
  return {{"bytes", static_cast<double>(workspace.bytes())}, {"seconds", seconds}};
}

}  // namespace

Values decode_attention_probe(const Settings& settings) {
  const std::int64_t tokens = settings.at("tokens");
  return attention(tokens, settings.at("splits"), kContext, tokens);
}

// All rows of a prompt read the same keys.
Values prefill_attention_probe(const Settings& settings) {
  constexpr std::int64_t kKeys = 512;
  return attention(settings.at("tokens"), kPrefillSplits, kKeys, 1);
}

}  // namespace oomcast::validation
