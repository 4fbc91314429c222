// quantization_config and hf_quant_config.json -> Quantization, and what it does to a linear layer.
#pragma once

#include <functional>

#include "models/families/family.hpp"

namespace oomcast::models {

// Fills spec.quantization if either file asks for one, and marks the tensors it leaves alone
// (Quantization::kept). Call it after the layers are built. A method whose bytes are not modelled
// is kept, and refused by scheme_of().
void read_quantization(const Config& config, const Json& hf_quant_config, ModelSpec& spec);

// What is stored for one quantised linear [rows, columns].
struct QuantScheme {
  enum class Kind : std::uint8_t {
    kFp8Block,    // 1 B, fp32 scale per block
    kPerTensor,   // 1 B (fp8 or int8), one fp32 scale per fused part
    kPerChannel,  // 1 B, fp32 scale per row
    kInt4Group,   // 4 or 8 bits packed, 16-bit scale per group, zero points unless symmetric
    kNvfp4,       // 0.5 B, fp8 scale per 16, two fp32 scalars
    kMxfp4,       // 0.5 B, one byte per 32
    kMxfp8,       // 1 B, one byte per 32
    kNf4,         // 0.5 B, fp32 absmax per 64
  };
  Kind kind = Kind::kPerTensor;
  std::int64_t weight_bits = 8;
  std::int64_t group = 128;
  std::int64_t block_rows = 128;
  std::int64_t block_columns = 128;
  bool zero_points = false;
  bool input_scale = false;
  bool byte_scales = false;  // kFp8Block: e8m0
};

// Throws ConfigError, naming the method and the supported ones, if there are no byte rules for it.
QuantScheme scheme_of(const Quantization& quantization);
// `--quantization fp8` over a 16-bit checkpoint: quantised while loading, one scale a linear.
QuantScheme online_scheme(const std::string& method);

// A linear (or a stack of `experts` of them) as one rank holds it.
struct LinearShape {
  std::vector<std::int64_t> parts;  // rows of each fused part
  std::int64_t columns = 1;
  std::int64_t experts = 1;
};
struct QuantTensor {
  std::string_view suffix;  // "", "_scale", "_zeros", "_input_scale"
  WeightLeaf leaf = WeightLeaf::kWeights;
  DType dtype = DType::kFloat8;
  std::int64_t elements = 0;
};
// `unpacked_zeros`: Hopper's Machete kernel keeps zero points in 16 bits, Marlin packed.
std::vector<QuantTensor> quantised_tensors(const QuantScheme& scheme, const LinearShape& shape,
                                           DType model_dtype, bool unpacked_zeros);

}  // namespace oomcast::models
