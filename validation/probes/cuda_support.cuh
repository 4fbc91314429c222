// CUDA calls that throw, and what they hand out with an owner.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "validation/schedule/device.hpp"

namespace oomcast::validation {

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) {
    return;
  }
  cudaGetLastError();  // an error that is reported must not show up again in the next call
  const std::string text = std::string(what) + ": " + cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) {
    throw OutOfMemory(text);
  }
  if (status == cudaErrorNotSupported || status == cudaErrorNoDevice ||
      status == cudaErrorInsufficientDriver) {
    throw Unsupported(text);
  }
  throw DeviceFailure(text);
}

// Of the current device.
inline std::int64_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(free);
}

class Buffer {
 public:
  explicit Buffer(std::int64_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&at_, static_cast<std::size_t>(bytes)), "cudaMalloc");
  }
  ~Buffer() { cudaFree(at_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(at_);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  void* at_ = nullptr;
  std::int64_t bytes_;
};

class PinnedBuffer {
 public:
  explicit PinnedBuffer(std::int64_t bytes) {
    check(cudaMallocHost(&at_, static_cast<std::size_t>(bytes)), "cudaMallocHost");
  }
  ~PinnedBuffer() { cudaFreeHost(at_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  char* data() const { return static_cast<char*>(at_); }

 private:
  void* at_ = nullptr;
};

class Stream {
 public:
  Stream() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }
  void record(const Stream& stream) const {
    check(cudaEventRecord(event_, stream.get()), "cudaEventRecord");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Seconds of one call of `work(stream)`, of `times` in a row after one that is not counted.
template <typename Work>
double seconds_of(const Stream& stream, int times, Work work) {
  const Event begin;
  const Event end;
  work(stream);
  begin.record(stream);
  for (int i = 0; i < times; ++i) {
    work(stream);
  }
  end.record(stream);
  stream.wait();
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3 / times;
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace oomcast::validation
