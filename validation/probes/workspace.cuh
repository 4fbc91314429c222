// Scratch of the stand-ins for engines' kernels, counted as it is asked for.
#pragma once

#include <memory>
#include <vector>

#include "validation/probes/cuda_support.cuh"

namespace oomcast::validation {

class Workspace {
 public:
  template <typename T>
  T* take(std::int64_t count) {
    const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
    buffers_.push_back(std::make_unique<Buffer>(bytes > 0 ? bytes : 1));
    bytes_ += bytes;
    return buffers_.back()->as<T>();
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::int64_t bytes_ = 0;
};

}  // namespace oomcast::validation
