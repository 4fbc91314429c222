// What kernels, libraries and communicators allocate beside their inputs and outputs, as a list of
// named buffers: the one result type of sim/kernels and sim/comm.
//
// All shapes are counts, all results bytes. A shape that cannot be (negative, zero where something
// must be, larger than any machine) throws ConfigError naming it; a product that does not fit 64
// bits throws ArithmeticOverflow.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"
#include "sim/ledger/classes.hpp"

namespace oomcast {

enum class Lifetime : std::uint8_t {
  kPersistent,  // made once, kept as long as its owner
  kStep,        // taken and given back within a call or a step
};

struct Buffer {
  std::string_view name;  // a literal
  std::string formula;    // what `bytes` is, in symbols
  Bytes bytes;
  Lifetime lifetime = Lifetime::kStep;
  Backing backing = Backing::kSegment;
};

// Sum over the buffers that lie in the GPU's memory, and over those in pinned host memory.
Bytes device_bytes(std::span<const Buffer> buffers);
Bytes host_bytes(std::span<const Buffer> buffers);

// Appends `more` to `buffers`.
void append(std::vector<Buffer>& buffers, std::vector<Buffer> more);

// Checked product of counts.
template <std::integral... Count>
constexpr std::int64_t product(Count... counts) {
  std::int64_t out = 1;
  ((out = detail::checked_mul(out, static_cast<std::int64_t>(counts))), ...);
  return out;
}

// The smallest power of two at or above `value`; 1 for less.
std::int64_t next_power_of_two(std::int64_t value);

// Collects what is wrong with the shape of one kernel, so that all of it is said at once.
class ShapeCheck {
 public:
  static constexpr std::int64_t kMost = std::int64_t{1} << 40;

  explicit ShapeCheck(std::string kernel) : kernel_(std::move(kernel)) {}

  ShapeCheck& between(std::string_view name, std::int64_t value, std::int64_t low,
                      std::int64_t high = kMost);
  ShapeCheck& positive(std::string_view name, std::int64_t value) {
    return between(name, value, 1);
  }
  ShapeCheck& countable(std::string_view name, std::int64_t value) {
    return between(name, value, 0);
  }
  void raise_if_any() const { problems_.raise_if_any(); }

 private:
  std::string kernel_;
  Problems problems_;
};

}  // namespace oomcast
