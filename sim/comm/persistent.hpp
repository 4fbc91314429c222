// Buffers that live as long as their communicator.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "sim/kernels/buffer.hpp"

namespace oomcast::comm {

// What cudaMalloc and cuMemCreate hand out at least.
inline constexpr Bytes kGranule = 2 * kMiB;

inline Buffer kept(std::string_view name, std::string formula, Bytes bytes, Backing backing) {
  return {name, std::move(formula), bytes, Lifetime::kPersistent, backing};
}

// cudaMalloc: whole granules.
inline Buffer from_driver(std::string_view name, std::string formula, std::int64_t bytes) {
  return kept(name, std::move(formula), align_up(Bytes{bytes}, kGranule), Backing::kDriver);
}

}  // namespace oomcast::comm
