// A simulated torch.OutOfMemoryError: the numbers, and the text PyTorch would print.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/core/units.hpp"

namespace oomcast::allocator {

struct OutOfMemory {
  enum class Kind : std::uint8_t {
    kExhausted,      // the driver or the memory fraction refused, after all retries
    kRejected,       // throw_on_cudamalloc_oom: refused before the driver was asked
    kBeyondExabyte,  // a size that PyTorch refuses to try
  };
  Kind kind = Kind::kExhausted;
  Bytes requested{};
  Bytes segment{};  // what was asked of the driver: "Tried to allocate"
  Bytes limit{};    // by memory fraction, else the device's total
  bool has_limit = false;
  Bytes device_total{};
  Bytes device_free{};
  Bytes process_used{};
  Bytes allocated{};
  Bytes reserved{};
  Bytes free_in_private_pools{};  // what the message calls "allocated in private pools"
  bool expandable_segments = false;
  int device_index = 0;

  // Bytes more that would have let the last attempt succeed.
  [[nodiscard]] Bytes short_by() const;
  // The exception's text, of PyTorch 2.15.
  [[nodiscard]] std::string message() const;
};

// c10's format_size: "512 bytes", "1.50 KiB", "1024.00 MiB", "2.00 GiB".
std::string format_torch_size(Bytes size);

}  // namespace oomcast::allocator
