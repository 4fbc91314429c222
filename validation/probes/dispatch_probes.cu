// Double buffers: one is filled while the other is worked on. How much memory two of them take, and
// how much of the shorter of the two works the overlap hides.
#include <algorithm>
#include <chrono>

#include "validation/probes/cuda_support.cuh"
#include "validation/probes/probes.hpp"
#include "validation/schedule/probe_shapes.hpp"

namespace oomcast::validation {
namespace {

constexpr int kRounds = 16;

// Arithmetic for about as long as a copy takes.
__global__ void work(float* data, std::int64_t count, int rounds) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) {
    float x = data[i];
    for (int round = 0; round < rounds; ++round) {
      x = fmaf(x, 0.999f, 0.001f);
    }
    data[i] = x;
  }
}

struct Pair {
  const Buffer& first;
  const Buffer& second;
  const Buffer& of(int round) const { return round % 2 == 0 ? first : second; }
};

template <typename Work>
double wall_seconds(Work run) {
  using Clock = std::chrono::steady_clock;
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const Clock::time_point begin = Clock::now();
  run();
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void compute(const Buffer& buffer, const Stream& stream) {
  const auto count = buffer.bytes() / static_cast<std::int64_t>(sizeof(float));
  work<<<blocks_for(count, 256), 256, 0, stream.get()>>>(buffer.as<float>(), count, 256);
  check(cudaGetLastError(), "a kernel");
}

// `fill(buffer, stream)` starts to fill a buffer. Share of the shorter work that is hidden when the
// next buffer is filled while the last is worked on.
template <typename Fill>
double overlap_of(const Pair& pair, Fill fill) {
  const Stream filling;
  const Stream working;
  const Event filled[2];
  const Event worked[2];
  const auto once = [&] {
    fill(pair.first, filling);
    filling.wait();
    compute(pair.first, working);
    working.wait();
  };
  once();
  const double fills = wall_seconds([&] {
    for (int round = 0; round < kRounds; ++round) {
      fill(pair.of(round), filling);
    }
  });
  const double works = wall_seconds([&] {
    for (int round = 0; round < kRounds; ++round) {
      compute(pair.of(round), working);
    }
  });
  const double both = wall_seconds([&] {
    for (int round = 0; round < kRounds; ++round) {
      if (round >= 2) {
        check(cudaStreamWaitEvent(filling.get(), worked[round % 2].get(), 0),
              "cudaStreamWaitEvent");
      }
      fill(pair.of(round), filling);
      filled[round % 2].record(filling);
      check(cudaStreamWaitEvent(working.get(), filled[round % 2].get(), 0), "cudaStreamWaitEvent");
      compute(pair.of(round), working);
      worked[round % 2].record(working);
    }
  });
  const double hidden = (fills + works - both) / std::min(fills, works);
  return std::clamp(hidden, 0.0, 1.0);
}

}  // namespace

// Stands for the send and receive buffers of expert dispatch on one card: the copies stay on it.
Values dispatch_probe(const Settings& settings) {
  constexpr std::int64_t kRowBytes = kHidden * 2;
  const std::int64_t bytes = settings.at("tokens") * kRowBytes;
  const Buffer tokens(bytes);
  const std::int64_t before = free_bytes();
  const Buffer first(bytes);
  const Buffer second(bytes);
  const std::int64_t taken = before - free_bytes();
  const double overlap = overlap_of({first, second}, [&](const Buffer& to, const Stream& stream) {
    check(cudaMemcpyAsync(to.as<void>(), tokens.as<void>(), static_cast<std::size_t>(bytes),
                          cudaMemcpyDeviceToDevice, stream.get()),
          "cudaMemcpy");
  });
  return {{"bytes", static_cast<double>(taken)}, {"overlap", overlap}};
}

// Stands for KV coming from the host or another node through staging buffers.
Values transfer_probe(const Settings& settings) {
  const std::int64_t bytes = settings.at("bytes");
  const PinnedBuffer host(bytes);
  const Buffer first(bytes);
  const Buffer second(bytes);
  const auto fill = [&](const Buffer& to, const Stream& stream) {
    check(cudaMemcpyAsync(to.as<void>(), host.data(), static_cast<std::size_t>(bytes),
                          cudaMemcpyHostToDevice, stream.get()),
          "cudaMemcpy");
  };
  const Stream stream;
  const double seconds = seconds_of(stream, 10, [&](const Stream& on) { fill(first, on); });
  return {{"seconds", seconds}, {"overlap", overlap_of({first, second}, fill)}};
}

}  // namespace oomcast::validation
