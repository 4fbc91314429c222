#include <utility>

#include "validation/probes/child.hpp"
#include "validation/probes/cuda_support.cuh"
#include "validation/probes/probes.hpp"

namespace oomcast::validation {
namespace {

constexpr int kKernels = 128;

// One of many kernels whose code is alike in size: a chain of dependent operations that no compiler
// folds, different for each by its number.
template <int kNumber>
__global__ void module_kernel(float* out, float x) {
  float y = x;
#pragma unroll
  for (int i = 0; i < 256; ++i) {
    y = fmaf(y, x + static_cast<float>(kNumber), static_cast<float>(i * kNumber + 1));
    y = y > 1e6f ? __fdividef(1.0f, y) : y;
  }
  out[threadIdx.x] = y;
}

template <int kNumber>
void launch_if(bool wanted, float* out) {
  if (wanted) {
    module_kernel<kNumber><<<1, 32>>>(out, 0.5f);
  }
}

template <int... kNumbers>
void launch_first(std::int64_t count, float* out, std::integer_sequence<int, kNumbers...>) {
  (launch_if<kNumbers>(kNumbers < count, out), ...);
}

}  // namespace

void context_child(const Settings& settings) {
  check(cudaFree(nullptr), "a context");
  if (settings.at("kernels") > 0) {
    const Buffer out(256);
    launch_first(settings.at("kernels"), out.as<float>(),
                 std::make_integer_sequence<int, kKernels>{});
    check(cudaDeviceSynchronize(), "kernels");
  }
  step_done();
}

Values context_probe(const Settings& settings) {
  const bool eager = settings.at("eager") != 0;
  const auto steps = steps_of_child(
      "context", settings, 1, {eager ? "CUDA_MODULE_LOADING=EAGER" : "CUDA_MODULE_LOADING=LAZY"});
  return {{"bytes", static_cast<double>(steps.front())}};
}

}  // namespace oomcast::validation
