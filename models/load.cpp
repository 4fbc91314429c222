#include "models/load.hpp"

#include "models/fp4_conversion.hpp"
#include "models/fp4_repacking.hpp"

namespace oomcast::models {
namespace {

class Sequence {
 public:
  std::uint32_t allocate(Bytes bytes, WeightLeaf leaf) {
    calls_.push_back({LoadCall::Kind::kAllocate, next_, bytes, leaf});
    return next_++;
  }
  void free(std::uint32_t tensor) { calls_.push_back({LoadCall::Kind::kFree, tensor, {}, {}}); }
  // Marks where the tensor was made.
  void use_as(std::uint32_t tensor, const TensorBytes& made) {
    if (!made.used_as || *made.used_as == made.dtype) {
      return;
    }
    for (LoadCall& call : calls_) {
      if (call.kind == LoadCall::Kind::kAllocate && call.tensor == tensor) {
        call.converted_at_first_use =
            bytes_of(*made.used_as, made.bytes.count() * 8 / bits_of(made.dtype));
      }
    }
  }
  [[nodiscard]] std::size_t size() const { return calls_.size(); }
  std::vector<LoadCall> take() { return std::move(calls_); }

 private:
  std::vector<LoadCall> calls_;
  std::uint32_t next_ = 0;
};

// Angles, cosines and sines in fp32, then both side by side.
std::uint32_t compute_rope_table(Sequence& calls, std::int64_t elements, bool scaled,
                                 WeightLeaf leaf) {
  const Bytes half = bytes_of(DType::kFloat32, elements / 2);
  const std::uint32_t angles = calls.allocate(half, leaf);
  const auto one = [&] {
    const std::uint32_t plain = calls.allocate(half, leaf);
    if (!scaled) {
      return plain;
    }
    const std::uint32_t multiplied = calls.allocate(half, leaf);
    calls.free(plain);
    return multiplied;
  };
  const std::uint32_t cosines = one();
  const std::uint32_t sines = one();
  const std::uint32_t both = calls.allocate(half * 2, leaf);
  calls.free(angles);
  calls.free(cosines);
  calls.free(sines);
  return both;
}

std::uint32_t convert(Sequence& calls, std::uint32_t table, Bytes bytes, WeightLeaf leaf) {
  const std::uint32_t converted = calls.allocate(bytes, leaf);
  calls.free(table);
  return converted;
}

void allocate_rope_table(Sequence& calls, const TensorBytes& table) {
  const auto computed = [&](Bytes bytes) {
    const std::int64_t elements = bytes.count() * 8 / bits_of(table.dtype);
    const std::uint32_t made =
        compute_rope_table(calls, elements, table.rope_table != RopeTable::kPlain, table.leaf);
    return table.dtype == DType::kFloat32 ? made : convert(calls, made, bytes, table.leaf);
  };
  if (table.rope_table != RopeTable::kTwo) {
    calls.use_as(computed(table.bytes), table);
    return;
  }
  const std::uint32_t shorter = computed(table.short_table);
  const std::uint32_t longer = computed(table.bytes - table.short_table);
  calls.use_as(calls.allocate(table.bytes, table.leaf), table);
  calls.free(shorter);
  calls.free(longer);
}

// Layer by layer the kernel's layout of the experts is made; what it replaces goes after both
// matrices are done (vLLM oracle/mxfp4.py).
class KernelLayouts {
 public:
  KernelLayouts(Sequence& calls, const RankWeights& weights)
      : calls_(calls), conversion_(weights.swizzle.value_or(Fp4Experts::Swizzle{}), calls) {}

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
          conversion_.convert(values, scales);
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

  Sequence& calls_;
  Fp4Conversion<Sequence> conversion_;
  std::vector<Layer> layers_;
};

// AWQ packs along the output, in an order of its own. Linear by linear both values and zero points
// are unpacked to 32 bits each, put in order and packed along the input; Machete then lays the
// values out anew and takes the zero points in 16 bits, scaled (awq_marlin.py
// _convert_awq_to_standard_format, mixed_precision/machete.py).
class AwqConversion {
 public:
  AwqConversion(Sequence& calls, bool in_place) : calls_(calls), in_place_(in_place) {}

  void created(const TensorBytes& tensor) {
    if (tensor.suffix.empty()) {
      linears_.emplace_back();
    }
    linears_.back().parts.push_back({&tensor, calls_.allocate(*tensor.created, tensor.leaf)});
  }

  void convert() {
    for (Linear& linear : linears_) {
      convert(linear);
    }
  }

 private:
  struct Part {
    const TensorBytes* tensor;
    std::uint32_t made;
  };
  struct Linear {
    std::vector<Part> parts;  // values, scales, zero points
  };

  std::uint32_t copy(Bytes bytes) { return calls_.allocate(bytes, WeightLeaf::kWeights); }
  static Bytes in_32_bits(Bytes packed) { return packed * 8; }

  // Values apart, in order; what they were goes.
  std::uint32_t unpack(Bytes packed) {
    const std::uint32_t shifted = copy(in_32_bits(packed));
    const std::uint32_t masked = copy(in_32_bits(packed));
    calls_.free(shifted);
    const std::uint32_t ordered = copy(in_32_bits(packed));
    calls_.free(masked);
    return ordered;
  }
  // Eight to a word.
  std::uint32_t pack(Bytes packed) {
    const std::uint32_t shifted = copy(in_32_bits(packed));
    const std::uint32_t words = copy(packed);
    calls_.free(shifted);
    return words;
  }

  void convert(const Linear& linear) {
    const Part& values = linear.parts.at(0);
    const Part& zeros = linear.parts.at(2);
    const Bytes packed = values.tensor->bytes;
    const Bytes packed_zeros = *zeros.tensor->created;
    constexpr Bytes kOrder{64};
    constexpr Bytes kShifts{32};
    const std::uint32_t order = copy(kOrder);
    const std::uint32_t shifts = copy(kShifts);
    const std::uint32_t apart = unpack(packed);
    const std::uint32_t words = pack(packed);
    const std::uint32_t zeros_apart = unpack(packed_zeros);
    const std::uint32_t zero_words = pack(packed_zeros);
    for (const std::uint32_t gone : {order, shifts, values.made, apart, zeros.made, zeros_apart}) {
      calls_.free(gone);
    }
    lay_out(packed, words);
    scale_zeros(zeros.tensor->bytes, packed_zeros, zero_words);
  }

  void lay_out(Bytes packed, std::uint32_t words) {
    const std::uint32_t contiguous = copy(packed);
    const std::uint32_t kernels = copy(packed);
    calls_.free(contiguous);
    calls_.free(in_place_ ? kernels : words);
  }

  void scale_zeros(Bytes bytes, Bytes packed, std::uint32_t words) {
    const std::uint32_t apart = copy(in_32_bits(packed));
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t shifted = copy(packed);
      const std::uint32_t masked = copy(packed);
      calls_.free(shifted);
      calls_.free(masked);
    }
    const std::uint32_t negated = copy(bytes);
    const std::uint32_t short_floats = copy(bytes);
    calls_.allocate(bytes, WeightLeaf::kScales);  // the kernel's
    calls_.free(short_floats);
    calls_.free(negated);
    calls_.free(words);
    calls_.free(apart);
  }

  Sequence& calls_;
  bool in_place_;
  std::vector<Linear> linears_;
};

}  // namespace

std::vector<LoadCall> load_sequence(const RankWeights& weights) {
  Sequence calls;
  KernelLayouts layouts(calls, weights);
  AwqConversion awq(calls, weights.converts_awq_in_place);
  Fp4Repacking<Sequence> repacking(calls);
  std::string_view repacked;          // the linear under way
  std::vector<std::uint32_t> moving;  // to the host, with the layer's end
  int layer = -1;
  const auto end_layer = [&] {
    for (const std::uint32_t tensor : moving) {
      calls.free(tensor);
    }
    moving.clear();
  };
  for (const TensorBytes& tensor : weights.tensors) {
    if (tensor.layer != layer) {
      end_layer();
      layer = tensor.layer;
    }
    if (tensor.rope_table != RopeTable::kNone) {
      allocate_rope_table(calls, tensor);
    } else if (tensor.on_host) {
      moving.push_back(calls.allocate(tensor.bytes, tensor.leaf));
    } else if (tensor.created && !weights.swizzle &&
               (tensor.dtype == DType::kInt4 || !tensor.suffix.empty())) {
      awq.created(tensor);
    } else if (tensor.created) {
      layouts.created(tensor);
    } else if (weights.repacks_fp4 && (tensor.dtype == DType::kFloat4 ||
                                       (!tensor.suffix.empty() && tensor.name == repacked))) {
      repacked = tensor.name;
      repacking.created(tensor);
    } else {
      calls.allocate(tensor.bytes, tensor.leaf);
    }
  }
  end_layer();
  if (weights.dropped_head > Bytes{0}) {
    calls.free(calls.allocate(weights.dropped_head, WeightLeaf::kWeights));
  }
  const std::size_t made = calls.size();
  layouts.make();
  awq.convert();
  repacking.convert();
  std::vector<LoadCall> all = calls.take();
  if (made < all.size()) {
    all[made].begins_conversion = true;
  }
  return all;
}

}  // namespace oomcast::models
