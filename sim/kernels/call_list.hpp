// Calls of the caching allocator in the order in which an operator makes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace oomcast::kernels {

struct AllocatorCall {
  std::int64_t bytes = 0;   // asked for; negative: given back
  std::size_t made_by = 0;  // of a free: index of the call that asked; of a request: its own

  friend bool operator==(const AllocatorCall&, const AllocatorCall&) = default;
};

class CallList {
 public:
  // Returns what free() takes. Empty tensors never reach the allocator, so bytes > 0.
  std::size_t allocate(std::int64_t bytes) {
    calls_.push_back({bytes, calls_.size()});
    return calls_.size() - 1;
  }
  void free(std::size_t request) { calls_.push_back({-calls_[request].bytes, request}); }
  // Scratch of one kernel.
  void allocate_and_free(std::int64_t bytes) { free(allocate(bytes)); }

  [[nodiscard]] std::vector<AllocatorCall> take() { return std::move(calls_); }

 private:
  std::vector<AllocatorCall> calls_;
};

}  // namespace oomcast::kernels
