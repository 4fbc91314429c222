// What a card really shows, as the options of `oomcast plan`: total and free memory as
// cudaMemGetInfo sees them, what the CUDA context of this small process takes, and the driver's
// granule.
//
// One line of JSON on standard output. Allocates one granule at most and frees it.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    std::fprintf(stderr, "card_probe: %s: %s\n", what, cudaGetErrorString(status));
    std::exit(2);
  }
}

// A kernel of this program, so that the context holds loaded code.
__global__ void touch(int* out) { *out = 1; }

}  // namespace

int main() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "no usable GPU");
  if (devices == 0) {
    std::fprintf(stderr, "card_probe: no GPU in this machine\n");
    return 2;
  }
  cudaDeviceProp card{};
  check(cudaGetDeviceProperties(&card, 0), "cudaGetDeviceProperties");
  std::size_t free_first = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free_first, &total), "cudaMemGetInfo");

  int* cell = nullptr;
  check(cudaMalloc(&cell, 1), "cudaMalloc");
  std::size_t free_after_byte = 0;
  check(cudaMemGetInfo(&free_after_byte, &total), "cudaMemGetInfo");
  touch<<<1, 1>>>(cell);
  check(cudaDeviceSynchronize(), "a kernel");
  std::size_t free_after_kernel = 0;
  check(cudaMemGetInfo(&free_after_kernel, &total), "cudaMemGetInfo");
  check(cudaFree(cell), "cudaFree");

  std::printf(
      "{\"schema\":\"oomcast.card_probe/1\",\"gpu\":\"%s\",\"sm_count\":%d,\"threads_per_sm\":%d,"
      "\"compute_capability\":\"%d.%d\",\"l2_bytes\":%d,\"total_bytes\":%zu,\"free_bytes\":%zu,"
      "\"malloc_granule_bytes\":%zu,\"first_kernel_bytes\":%zu}\n",
      card.name, card.multiProcessorCount, card.maxThreadsPerMultiProcessor, card.major, card.minor,
      card.l2CacheSize, total, free_first, free_first - free_after_byte,
      free_after_byte - free_after_kernel);
  return 0;
}
