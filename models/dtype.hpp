// Element types of tensors as checkpoints and engines name them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "sim/core/units.hpp"

namespace oomcast::models {

enum class DType : std::uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat8,  // e4m3, e5m2 and e8m0 alike: one byte
  kFloat4,  // e2m1, two in a byte
  kInt64,
  kInt32,
  kInt8,  // also uint8 and bool
  kInt4,  // two in a byte
};

// Bits of one element.
std::int64_t bits_of(DType dtype);
// Bytes of `elements` packed elements, rounded up to whole bytes.
Bytes bytes_of(DType dtype, std::int64_t elements);
// "bfloat16", "float8_e4m3fn" style names.
std::string_view name_of(DType dtype);
// "bfloat16", "torch.float16", "half", "fp8", "fp8_e4m3", "float" …; nullopt if unknown.
// Case-blind.
std::optional<DType> parse_dtype(std::string_view text);

}  // namespace oomcast::models
