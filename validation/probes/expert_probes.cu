// Plain kernels that stand for a mixture of experts: routing by a real radix sort, a grouped matrix
// product, quantised activations. Right in what they allocate, not in how fast they are.
#include <cuda_bf16.h>

#include <cub/device/device_radix_sort.cuh>

#include "validation/probes/cuda_support.cuh"
#include "validation/probes/probes.hpp"
#include "validation/probes/workspace.cuh"
#include "validation/schedule/probe_shapes.hpp"

namespace oomcast::validation {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = static_cast<int>(kHidden);
constexpr int kInner = static_cast<int>(kExpertWidth);

// Rows spread over the experts as a good router would.
__global__ void route(int* expert, int* source, float* weight, std::int64_t rows) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < rows) {
    expert[i] = static_cast<int>((i * 2654435761LL >> 7) % kExperts);
    source[i] = static_cast<int>(i);
    weight[i] = 1.0f / 8;
  }
}

__global__ void gather_rows(const __nv_bfloat16* from, const int* source, __nv_bfloat16* to) {
  const std::int64_t row = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < kWidth; i += kThreads) {
    to[row * kWidth + i] = from[static_cast<std::int64_t>(source[row]) * kWidth + i];
  }
}

// Of each row with its expert's matrix [out_width][in_width].
__global__ void grouped_product(const __nv_bfloat16* in, int in_width,
                                const __nv_bfloat16* matrices, __nv_bfloat16* out, int out_width) {
  const std::int64_t row = blockIdx.x;
  const __nv_bfloat16* matrix =
      matrices + (row % kExperts) * static_cast<std::int64_t>(in_width) * out_width;
  for (int o = static_cast<int>(threadIdx.x); o < out_width; o += kThreads) {
    float sum = 0;
    for (int i = 0; i < in_width; ++i) {
      sum += __bfloat162float(in[row * in_width + i]) *
             __bfloat162float(matrix[static_cast<std::int64_t>(o) * in_width + i]);
    }
    out[row * out_width + o] = __float2bfloat16(sum);
  }
}

__global__ void gate(const __nv_bfloat16* gate_up, __nv_bfloat16* out) {
  const std::int64_t row = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < kInner; i += kThreads) {
    const float x = __bfloat162float(gate_up[row * 2 * kInner + i]);
    const float up = __bfloat162float(gate_up[row * 2 * kInner + kInner + i]);
    out[row * kInner + i] = __float2bfloat16(x / (1 + __expf(-x)) * up);
  }
}

// A scale a group of elements; a block a group.
__global__ void quantise(const __nv_bfloat16* in, signed char* out, float* scales) {
  __shared__ float highest[kQuantGroup];
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * gridDim.y + blockIdx.y;
  const int lane = static_cast<int>(threadIdx.x);
  const float value = __bfloat162float(in[group * kQuantGroup + lane]);
  highest[lane] = fabsf(value);
  __syncthreads();
  for (int half = static_cast<int>(kQuantGroup) / 2; half > 0; half /= 2) {
    if (lane < half) {
      highest[lane] = fmaxf(highest[lane], highest[lane + half]);
    }
    __syncthreads();
  }
  const float scale = fmaxf(highest[0], 1e-8f) / 127;
  out[group * kQuantGroup + lane] = static_cast<signed char>(rintf(value / scale));
  if (lane == 0) {
    scales[group] = scale;
  }
}

void clear(const Buffer& buffer, const Stream& stream) {
  check(
      cudaMemsetAsync(buffer.as<char>(), 0, static_cast<std::size_t>(buffer.bytes()), stream.get()),
      "cudaMemset");
}

unsigned count_of(std::int64_t rows) { return static_cast<unsigned>(rows); }

}  // namespace

Values permute_probe(const Settings& settings) {
  const std::int64_t rows = settings.at("rows");
  const Stream stream;
  const Buffer tokens(rows * kHidden * 2);
  clear(tokens, stream);
  Workspace workspace;
  int* const expert = workspace.take<int>(rows);
  int* const source = workspace.take<int>(rows);
  float* const weight = workspace.take<float>(rows);
  __nv_bfloat16* const permuted = workspace.take<__nv_bfloat16>(rows * kHidden);
  // The sort's other halves are not kept: its double buffers swap with these two.
  const Buffer other_experts(rows * 4);
  const Buffer other_sources(rows * 4);
  cub::DoubleBuffer<int> keys(expert, other_experts.as<int>());
  cub::DoubleBuffer<int> values(source, other_sources.as<int>());
  constexpr int kBits = 7;  // of the number of an expert
  std::size_t sort_bytes = 0;
  check(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, keys, values, static_cast<int>(rows),
                                        0, kBits, stream.get()),
        "a sort");
  const Buffer sort_space(static_cast<std::int64_t>(sort_bytes) + 1);
  const double seconds = seconds_of(stream, 3, [&](const Stream& on) {
    route<<<blocks_for(rows, kThreads), kThreads, 0, on.get()>>>(keys.Current(), values.Current(),
                                                                 weight, rows);
    check(cub::DeviceRadixSort::SortPairs(sort_space.as<void>(), sort_bytes, keys, values,
                                          static_cast<int>(rows), 0, kBits, on.get()),
          "a sort");
    gather_rows<<<count_of(rows), kThreads, 0, on.get()>>>(tokens.as<__nv_bfloat16>(),
                                                           values.Current(), permuted);
    check(cudaGetLastError(), "a kernel");
  });
  return {{"bytes", static_cast<double>(workspace.bytes())},
          {"sort_bytes", static_cast<double>(sort_bytes)},
          {"seconds", seconds}};
}

Values grouped_gemm_probe(const Settings& settings) {
  const std::int64_t rows = settings.at("rows");
  const Stream stream;
  const Buffer in(rows * kHidden * 2);
  const Buffer out(rows * kHidden * 2);
  const Buffer gate_up_matrices(kExperts * 2 * kExpertWidth * kHidden * 2);
  const Buffer down_matrices(kExperts * kExpertWidth * kHidden * 2);
  for (const Buffer* buffer : {&in, &gate_up_matrices, &down_matrices}) {
    clear(*buffer, stream);
  }
  Workspace workspace;
  __nv_bfloat16* const gate_up = workspace.take<__nv_bfloat16>(rows * 2 * kExpertWidth);
  __nv_bfloat16* const product = workspace.take<__nv_bfloat16>(rows * kExpertWidth);
  grouped_product<<<count_of(rows), kThreads, 0, stream.get()>>>(
      in.as<__nv_bfloat16>(), kWidth, gate_up_matrices.as<__nv_bfloat16>(), gate_up, 2 * kInner);
  gate<<<count_of(rows), kThreads, 0, stream.get()>>>(gate_up, product);
  grouped_product<<<count_of(rows), kThreads, 0, stream.get()>>>(
      product, kInner, down_matrices.as<__nv_bfloat16>(), out.as<__nv_bfloat16>(), kWidth);
  check(cudaGetLastError(), "a kernel");
  stream.wait();
  return {{"bytes", static_cast<double>(workspace.bytes())}};
}

// Rows padded to whole tiles, as the scales of block-scaled products are laid out.
Values quantise_probe(const Settings& settings) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t padded = (settings.at("rows") + kTile - 1) / kTile * kTile;
  const Stream stream;
  const Buffer in(padded * kHidden * 2);
  clear(in, stream);
  Workspace workspace;
  signed char* const out = workspace.take<signed char>(padded * kHidden);
  float* const scales = workspace.take<float>(padded * (kHidden / kQuantGroup));
  const dim3 grid(count_of(padded), static_cast<unsigned>(kHidden / kQuantGroup));
  const double seconds = seconds_of(stream, 3, [&](const Stream& on) {
    quantise<<<grid, static_cast<unsigned>(kQuantGroup), 0, on.get()>>>(in.as<__nv_bfloat16>(), out,
                                                                        scales);
    check(cudaGetLastError(), "a kernel");
  });
  return {{"bytes", static_cast<double>(workspace.bytes())}, {"seconds", seconds}};
}

}  // namespace oomcast::validation
