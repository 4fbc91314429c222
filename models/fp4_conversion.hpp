// Allocator calls while Triton's kernels rearrange MXFP4 experts: what the temporaries leave free
// is as large as the experts of a layer. Read from triton_kernels (tensor.py convert_layout,
// tensor_details/layout_details/hopper_value.py and hopper_scale.py): vLLM's third_party copy, and
// release 3.8 for `canonical`.
#pragma once

#include <cstdint>
#include <optional>

#include "models/weights.hpp"

namespace oomcast::models {

// `Sink`: std::uint32_t allocate(Bytes, WeightLeaf) numbers what it makes; free(std::uint32_t).
template <typename Sink>
class Fp4Conversion {
 public:
  Fp4Conversion(const Fp4Experts::Swizzle& swizzle, Sink& sink) : swizzle_(swizzle), sink_(sink) {}

  // Both keep the sizes that they have at the end; the originals are the caller's.
  void convert(const TensorBytes& values, const TensorBytes& scales) {
    std::optional<std::uint32_t> padded;
    if (swizzle_.pads_scales) {
      padded = copy(swizzle_.canonical ? scales.whole_tiles : scales.bytes);
    }
    convert_values(values);
    convert_scales(scales);
    if (padded) {
      sink_.free(*padded);
    }
  }

 private:
  std::uint32_t copy(Bytes bytes) { return sink_.allocate(bytes, WeightLeaf::kWeights); }
  // `from` goes once its successor is there.
  std::uint32_t replace(std::uint32_t from, Bytes bytes) {
    const std::uint32_t made = copy(bytes);
    sink_.free(from);
    return made;
  }
  // Of two values, both of which go.
  std::uint32_t join(std::uint32_t left, std::uint32_t right, Bytes bytes) {
    const std::uint32_t made = replace(left, bytes);
    sink_.free(right);
    return made;
  }

  // A value among 32 bits, widened from `narrow` if that is a tensor of its own: its fields are
  // masked and shifted apart.
  std::uint32_t spread(Bytes wide, int fields, std::optional<std::uint32_t> narrow = std::nullopt) {
    const std::uint32_t value = copy(wide);
    if (narrow) {
      sink_.free(*narrow);
    }
    std::uint32_t joined = replace(copy(wide), wide);
    for (int field = 1; field < fields; ++field) {
      joined = join(joined, replace(copy(wide), wide), wide);
    }
    sink_.free(value);
    return joined;
  }
  // Both values of a byte.
  std::uint32_t spread_pair(Bytes wide, int fields) {
    const std::uint32_t low = spread(wide, fields);
    const std::uint32_t high = spread(wide, fields, copy(Bytes{wide.count() / 4}));
    return join(low, replace(high, wide), wide);
  }

  void convert_values(const TensorBytes& values) {
    const Bytes bytes = values.bytes;
    std::optional<std::uint32_t> canonical;
    std::uint32_t data = 0;
    if (swizzle_.canonical) {
      canonical = copy(values.created.value_or(bytes));
      data = replace(copy(values.created.value_or(bytes)), bytes);
    } else {
      data = copy(bytes);
    }
    if (swizzle_.pads_first) {
      data = replace(data, bytes);
    }
    data = replace(data, bytes);  // permuted
    if (swizzle_.canonical) {
      interleave_in_place(bytes);
    } else {
      interleave(bytes);
    }
    sink_.free(data);
    if (canonical) {
      sink_.free(*canonical);
    }
  }

  // first | second >> 3 | third >> 6 | fourth, each a tensor.
  void interleave(Bytes bytes) {
    const std::uint32_t first = spread_pair(bytes, 2);
    const std::uint32_t second = spread_pair(bytes, 2);
    const std::uint32_t third = spread_pair(bytes, 2);
    const std::uint32_t fourth = spread_pair(bytes, 3);
    const std::uint32_t shifted = replace(copy(bytes), bytes);
    std::uint32_t joined = copy(bytes);
    sink_.free(shifted);
    joined = join(joined, replace(copy(bytes), bytes), bytes);
    copy(bytes);  // the result
    for (const std::uint32_t gone : {joined, first, fourth, third, second}) {
      sink_.free(gone);
    }
  }

  // The first part takes the others in.
  void interleave_in_place(Bytes bytes) {
    spread_pair(bytes, 2);  // the result
    for (int part = 1; part < 3; ++part) {
      const std::uint32_t wide = spread_pair(bytes, 2);
      const std::uint32_t shifted = replace(copy(bytes), bytes);
      sink_.free(wide);
      sink_.free(shifted);
    }
    sink_.free(spread_pair(bytes, 3));
  }

  // The canonical order has the rows as they are; the layout pads them.
  void convert_scales(const TensorBytes& scales) {
    const Bytes bytes = scales.bytes;
    std::optional<std::uint32_t> canonical;
    if (swizzle_.canonical) {
      canonical = copy(scales.whole_tiles);
    }
    std::uint32_t data = copy(swizzle_.canonical ? scales.whole_tiles : bytes);
    if (!swizzle_.canonical) {
      data = replace(data, bytes);
    }
    data = replace(data, bytes);  // padded
    sink_.allocate(bytes, WeightLeaf::kScales);
    sink_.free(data);
    if (canonical) {
      sink_.free(*canonical);
    }
  }

  Fp4Experts::Swizzle swizzle_;
  Sink& sink_;
};

}  // namespace oomcast::models
