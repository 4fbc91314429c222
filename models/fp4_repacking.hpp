// Allocator calls while Marlin's layout of NVFP4 weights is made, linear by linear and expert by
// expert. Read from vLLM 0.19 (quantization/utils/marlin_utils_fp4.py prepare_fp4_layer_for_marlin
// and prepare_nvfp4_moe_layer_for_marlin); what the search for a common factor copies of scales
// that are not zero is left out.
#pragma once

#include <cstdint>
#include <vector>

#include "models/weights.hpp"
#include "sim/core/units.hpp"

namespace oomcast::models {

// `Sink`: std::uint32_t allocate(Bytes, WeightLeaf) numbers what it makes; free(std::uint32_t).
template <typename Sink>
class Fp4Repacking {
 public:
  explicit Fp4Repacking(Sink& sink) : sink_(sink) {}

  // Values, then their scales; what else belongs to the linear stays as it is.
  void created(const TensorBytes& tensor) {
    const std::uint32_t made = sink_.allocate(tensor.bytes, tensor.leaf);
    if (tensor.suffix.empty()) {
      linears_.push_back({tensor.layer, tensor.experts, tensor.bytes, made, {}, 0});
    } else if (tensor.dtype == DType::kFloat8 && linears_.back().scales == Bytes{0}) {
      linears_.back().scales = tensor.bytes;
      linears_.back().made_scales = made;
    }
  }

  void convert() {
    for (std::size_t i = 0; i < linears_.size();) {
      if (linears_[i].experts == 1) {
        convert_one(linears_[i++]);
        continue;
      }
      std::size_t end = i;
      while (end < linears_.size() && linears_[end].experts > 1 &&
             linears_[end].layer == linears_[i].layer) {
        ++end;
      }
      convert_experts(i, end);
      i = end;
    }
  }

 private:
  struct Linear {
    int layer;
    std::int64_t experts;
    Bytes values;
    std::uint32_t made_values;
    Bytes scales;
    std::uint32_t made_scales;
  };

  std::uint32_t copy(Bytes bytes, WeightLeaf leaf = WeightLeaf::kWeights) {
    return sink_.allocate(bytes, leaf);
  }

  void convert_one(const Linear& linear) {
    const std::uint32_t transposed = copy(linear.values);
    copy(linear.values);  // repacked
    sink_.free(linear.made_values);
    const std::uint32_t scales = copy(linear.scales);
    const std::uint32_t wide = copy(linear.scales * 2);
    sink_.free(scales);
    const std::uint32_t permuted = copy(linear.scales * 2);
    sink_.free(wide);
    process_scales(linear.scales, true);
    sink_.free(permuted);
    sink_.free(transposed);
    sink_.free(linear.made_scales);
  }

  // In 16 bits, interleaved, shifted and packed to 8 bits again: what stays. A single linear's
  // search its factor meanwhile.
  std::uint32_t process_scales(Bytes bytes, bool searches) {
    sink_.free(copy(bytes));  // whether none is negative
    const std::uint32_t halves = copy(bytes * 2);
    const std::uint32_t interleaved = copy(bytes * 2);
    sink_.free(halves);
    if (searches) {
      search_factor(bytes);
    }
    const std::uint32_t scaled = copy(bytes * 2);
    const std::uint32_t shifted = copy(bytes * 2);
    sink_.free(scaled);
    sink_.free(interleaved);
    const std::uint32_t packed = copy(bytes, WeightLeaf::kScales);
    sink_.free(shifted);
    return packed;
  }

  void search_factor(Bytes bytes) {
    const std::uint32_t floats = copy(bytes * 4);
    const std::uint32_t scaled = copy(bytes * 4);
    sink_.free(floats);
    const std::uint32_t mask = copy(bytes);
    sink_.free(scaled);
    sink_.free(mask);
  }

  void convert_experts(std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      repack_experts(linears_[i]);
    }
    for (std::size_t i = begin; i < end; ++i) {
      process_experts_scales(linears_[i]);
    }
    for (std::size_t i = begin; i < end; ++i) {
      sink_.free(linears_[i].made_values);
      sink_.free(linears_[i].made_scales);
    }
  }

  // The variables of the loop name the last expert's tensors to the end.
  void repack_experts(const Linear& linear) {
    const Bytes each{linear.values.count() / linear.experts};
    std::vector<std::uint32_t> repacked;
    std::vector<std::uint32_t> transposed;
    for (std::int64_t expert = 0; expert < linear.experts; ++expert) {
      transposed.push_back(copy(each));
      if (transposed.size() > 1) {
        sink_.free(transposed.front());
        transposed.erase(transposed.begin());
      }
      repacked.push_back(copy(each));
    }
    copy(linear.values);
    free_list(repacked);
    sink_.free(transposed.back());
    sink_.free(repacked.back());
  }

  void process_experts_scales(const Linear& linear) {
    const Bytes each{linear.scales.count() / linear.experts};
    const std::uint32_t wide = copy(linear.scales * 2);
    search_factor(linear.scales);
    std::vector<std::uint32_t> processed;
    for (std::int64_t expert = 0; expert < linear.experts; ++expert) {
      const std::uint32_t ordered = copy(each * 2);
      const std::uint32_t permuted = copy(each * 2);
      sink_.free(ordered);
      processed.push_back(process_scales(each, false));
      sink_.free(permuted);
    }
    copy(linear.scales, WeightLeaf::kScales);
    free_list(processed);
    sink_.free(wide);
    sink_.free(processed.back());
  }

  // All but the last, which has another name.
  void free_list(const std::vector<std::uint32_t>& list) {
    for (std::size_t i = list.size() - 1; i-- > 0;) {
      sink_.free(list[i]);
    }
  }

  Sink& sink_;
  std::vector<Linear> linears_;
};

}  // namespace oomcast::models
