#include "models/load.hpp"

namespace oomcast::models {
namespace {

class Sequence {
 public:
  std::uint32_t allocate(Bytes bytes, WeightLeaf leaf) {
    calls_.push_back({LoadCall::Kind::kAllocate, next_, bytes, leaf});
    return next_++;
  }
  void free(std::uint32_t tensor) { calls_.push_back({LoadCall::Kind::kFree, tensor, {}, {}}); }
  std::vector<LoadCall> take() { return std::move(calls_); }

 private:
  std::vector<LoadCall> calls_;
  std::uint32_t next_ = 0;
};

void allocate_rope_table(Sequence& calls, const TensorBytes& table) {
  const std::int64_t elements = table.bytes.count() * 8 / bits_of(table.dtype);
  const Bytes half = bytes_of(DType::kFloat32, elements / 2);
  const std::uint32_t angles = calls.allocate(half, table.leaf);
  const std::uint32_t cosines = calls.allocate(half, table.leaf);
  const std::uint32_t sines = calls.allocate(half, table.leaf);
  const std::uint32_t both = calls.allocate(half * 2, table.leaf);
  calls.free(sines);
  calls.free(cosines);
  calls.free(angles);
  if (table.dtype == DType::kFloat32) {
    return;  // nothing to convert: this is the table
  }
  calls.allocate(table.bytes, table.leaf);
  calls.free(both);
}

// Layer by layer the kernel's layout of the experts is made; what it replaces goes after both
// matrices are done.
class KernelLayouts {
 public:
  KernelLayouts(Sequence& calls, const RankWeights& weights)
      : calls_(calls), pads_first_(weights.pads_first), pads_scales_(weights.pads_scales) {}

  void created(const TensorBytes& tensor) {
    if (layers_.empty() || layers_.back().number != tensor.layer) {
      layers_.push_back({tensor.layer, {}});
    }
    Replaced replaced{&tensor, std::nullopt};
    if (tensor.created != Bytes{0}) {
      replaced.created = calls_.allocate(*tensor.created, tensor.leaf);
    }
    layers_.back().tensors.push_back(replaced);
  }

  void make() {
    for (const Layer& layer : layers_) {
      for (const Replaced& one : layer.tensors) {
        if (one.tensor->leaf == WeightLeaf::kWeights && one.tensor->dtype != DType::kFloat4) {
          calls_.allocate(one.tensor->bytes, one.tensor->leaf);  // a bias
        }
      }
      for (std::size_t i = 0; i + 1 < layer.tensors.size(); ++i) {
        const TensorBytes& values = *layer.tensors[i].tensor;
        const TensorBytes& scales = *layer.tensors[i + 1].tensor;
        if (values.dtype == DType::kFloat4) {
          swizzle(values.bytes, scales.bytes);
        }
      }
      for (const Replaced& one : layer.tensors) {
        if (one.created) {
          calls_.free(*one.created);
        }
      }
    }
  }

 private:
  struct Replaced {
    const TensorBytes* tensor;
    std::optional<std::uint32_t> created;
  };
  struct Layer {
    int number;
    std::vector<Replaced> tensors;
  };

  std::uint32_t copy(Bytes bytes) { return calls_.allocate(bytes, WeightLeaf::kWeights); }
  // `from` goes once its successor is there.
  std::uint32_t replace(std::uint32_t from, Bytes bytes) {
    const std::uint32_t made = copy(bytes);
    calls_.free(from);
    return made;
  }

  // One of the four values that share 32 bits: sign and magnitude are shifted apart.
  std::uint32_t spread(Bytes wide) {
    const std::uint32_t value = copy(wide);
    const std::uint32_t sign = replace(copy(wide), wide);
    const std::uint32_t magnitude = replace(copy(wide), wide);
    const std::uint32_t both = copy(wide);
    calls_.free(sign);
    calls_.free(magnitude);
    calls_.free(value);
    return both;
  }
  std::uint32_t spread_pair(Bytes wide) {
    const std::uint32_t low = spread(wide);
    const std::uint32_t upper_bits = copy(Bytes{wide.count() / 4});
    const std::uint32_t high = spread(wide);
    calls_.free(upper_bits);
    const std::uint32_t shifted = replace(high, wide);
    const std::uint32_t both = copy(wide);
    calls_.free(low);
    calls_.free(shifted);
    return both;
  }

  void swizzle(Bytes values, Bytes scales) {
    if (!pads_scales_) {
      swizzle_values(values);
      swizzle_scales(scales);
      return;
    }
    const std::uint32_t padded = copy(scales);
    swizzle_values(values);
    swizzle_scales(scales);
    calls_.free(padded);
  }

  // Padded, permuted, then the bits of each four values are interleaved: temporaries are as large
  // as the result.
  void swizzle_values(Bytes bytes) {
    std::uint32_t data = copy(bytes);
    if (pads_first_) {
      data = replace(data, bytes);
    }
    data = replace(data, bytes);
    const std::uint32_t first = spread_pair(bytes);
    const std::uint32_t second = spread_pair(bytes);
    const std::uint32_t third = spread_pair(bytes);
    const std::uint32_t fourth = spread_pair(bytes);
    std::uint32_t out = first;
    for (int part = 0; part < 2; ++part) {
      const std::uint32_t shifted = replace(copy(bytes), bytes);
      const std::uint32_t joined = copy(bytes);
      calls_.free(shifted);
      if (out != first) {
        calls_.free(out);
      }
      out = joined;
    }
    copy(bytes);
    calls_.free(out);
    calls_.free(fourth);
    calls_.free(third);
    calls_.free(second);
    calls_.free(first);
    calls_.free(data);
  }

  void swizzle_scales(Bytes bytes) {
    const std::uint32_t contiguous = replace(copy(bytes), bytes);
    const std::uint32_t padded = replace(contiguous, bytes);
    calls_.allocate(bytes, WeightLeaf::kScales);
    calls_.free(padded);
  }

  Sequence& calls_;
  bool pads_first_ = false;
  bool pads_scales_ = false;
  std::vector<Layer> layers_;
};

}  // namespace

std::vector<LoadCall> load_sequence(const RankWeights& weights) {
  Sequence calls;
  KernelLayouts layouts(calls, weights);
  for (const TensorBytes& tensor : weights.tensors) {
    if (tensor.rope_table) {
      allocate_rope_table(calls, tensor);
    } else if (tensor.created) {
      layouts.created(tensor);
    } else {
      calls.allocate(tensor.bytes, tensor.leaf);
    }
  }
  layouts.make();
  return calls.take();
}

}  // namespace oomcast::models
