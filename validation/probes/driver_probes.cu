// What the driver hands out and keeps: granules, mappings, registrations; and the bandwidth of HBM.
#include <cuda.h>

#include <algorithm>
#include <vector>

#include "validation/probes/cuda_support.cuh"
#include "validation/probes/probes.hpp"

namespace oomcast::validation {
namespace {

void check_driver(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS) {
    throw Unsupported(std::string(what) + ": driver error " + std::to_string(status));
  }
}

// Sums all words; the sum keeps the compiler from leaving out the reads.
__global__ void read_all(const uint4* from, std::int64_t words, unsigned* out) {
  unsigned sum = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
       i += step) {
    const uint4 word = from[i];
    sum += word.x ^ word.y ^ word.z ^ word.w;
  }
  if (sum == 0x9e3779b9U) {
    *out = sum;
  }
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  return count;
}

}  // namespace

Values malloc_probe(const Settings& settings) {
  const std::int64_t before = free_bytes();
  const Buffer buffer(settings.at("request"));
  return {{"bytes", static_cast<double>(before - free_bytes())}};
}

Values vmm_probe(const Settings&) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device;
  std::size_t least = 0;
  check_driver(cuMemGetAllocationGranularity(&least, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
               "cuMemGetAllocationGranularity");
  std::size_t recommended = 0;
  check_driver(
      cuMemGetAllocationGranularity(&recommended, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
  return {{"granule_bytes", static_cast<double>(least)},
          {"recommended_bytes", static_cast<double>(recommended)}};
}

Values pinned_probe(const Settings& settings) {
  const std::int64_t registered = settings.at("registered");
  std::vector<char> memory(static_cast<std::size_t>(registered));
  const std::int64_t before = free_bytes();
  check(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault),
        "cudaHostRegister");
  const std::int64_t after = free_bytes();
  check(cudaHostUnregister(memory.data()), "cudaHostUnregister");
  return {{"bytes", static_cast<double>(before - after)}};
}

Values peer_probe(const Settings& settings) {
  int own = 0;
  int devices = 0;
  check(cudaGetDevice(&own), "cudaGetDevice");
  check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  std::vector<int> peers;
  for (int device = 0; device < devices; ++device) {
    int can = 0;
    if (device != own && cudaDeviceCanAccessPeer(&can, own, device) == cudaSuccess && can != 0) {
      peers.push_back(device);
    }
  }
  const std::int64_t wanted = settings.at("peers");
  if (static_cast<std::int64_t>(peers.size()) < wanted) {
    throw Unsupported("fewer cards than that reach each other");
  }
  peers.resize(static_cast<std::size_t>(wanted));
  for (const int peer : peers) {  // their contexts first: they are no part of the mapping
    check(cudaSetDevice(peer), "cudaSetDevice");
    check(cudaFree(nullptr), "a context");
  }
  check(cudaSetDevice(own), "cudaSetDevice");
  const std::int64_t before = free_bytes();
  for (const int peer : peers) {
    check(cudaDeviceEnablePeerAccess(peer, 0), "cudaDeviceEnablePeerAccess");
  }
  const std::int64_t after = free_bytes();
  for (const int peer : peers) {
    check(cudaDeviceDisablePeerAccess(peer), "cudaDeviceDisablePeerAccess");
  }
  return {{"bytes", static_cast<double>(before - after)}};
}

Values hbm_probe(const Settings& settings) {
  const Buffer from(settings.at("bytes"));
  const Buffer out(4);
  const Stream stream;
  check(cudaMemsetAsync(from.as<char>(), 1, static_cast<std::size_t>(from.bytes()), stream.get()),
        "cudaMemset");
  const auto words = from.bytes() / static_cast<std::int64_t>(sizeof(uint4));
  const auto blocks = static_cast<unsigned>(multiprocessors() * 8);
  const double seconds = seconds_of(stream, 10, [&](const Stream& on) {
    read_all<<<blocks, 256, 0, on.get()>>>(from.as<uint4>(), words, out.as<unsigned>());
    check(cudaGetLastError(), "a kernel");
  });
  return {{"seconds", seconds}};
}

}  // namespace oomcast::validation
