#include "sim/kernels/buffer.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

namespace oomcast {
namespace {

Bytes sum_where(std::span<const Buffer> buffers, bool host) {
  Bytes sum;
  for (const Buffer& buffer : buffers) {
    sum += is_host(buffer.backing) == host ? buffer.bytes : Bytes{0};
  }
  return sum;
}

}  // namespace

Bytes device_bytes(std::span<const Buffer> buffers) { return sum_where(buffers, false); }

Bytes host_bytes(std::span<const Buffer> buffers) { return sum_where(buffers, true); }

void append(std::vector<Buffer>& buffers, std::vector<Buffer> more) {
  std::move(more.begin(), more.end(), std::back_inserter(buffers));
}

std::int64_t next_power_of_two(std::int64_t value) {
  const auto positive = static_cast<std::uint64_t>(std::max<std::int64_t>(value, 1));
  if (positive > std::uint64_t{1} << 62U) {
    detail::throw_overflow("to a power of two", value, 0);
  }
  return static_cast<std::int64_t>(std::bit_ceil(positive));
}

ShapeCheck& ShapeCheck::between(std::string_view name, std::int64_t value, std::int64_t low,
                                std::int64_t high) {
  if (value < low || value > high) {
    problems_.add({kernel_, std::string{name}, std::to_string(value),
                   fmt::format("{} to {}", low, high), ""});
  }
  return *this;
}

}  // namespace oomcast
