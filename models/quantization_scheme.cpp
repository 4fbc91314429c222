// Bytes of quantised linears (facts "models" 3; vLLM's layers as they lie after loading).
#include "models/quantization.hpp"

namespace oomcast::models {
namespace {

using Kind = QuantScheme::Kind;

std::int64_t sum_of(const std::vector<std::int64_t>& parts) {
  std::int64_t sum = 0;
  for (const std::int64_t part : parts) {
    sum += part;
  }
  return sum;
}

std::int64_t product(std::int64_t left, std::int64_t right) {
  return (Bytes{left} * right).count();  // checked
}

}  // namespace

QuantScheme scheme_of(const Quantization& quantization) {
  const std::string& method = quantization.method;
  QuantScheme out;
  out.input_scale = quantization.static_activations;
  out.zero_points = !quantization.symmetric;
  out.weight_bits = quantization.weight_bits;
  out.group = quantization.group_size;
  out.byte_scales = quantization.byte_scales;
  const bool mixed =
      quantization.format == "mixed-precision" || quantization.format == "MIXED_PRECISION";
  const bool eight = quantization.weight_bits == 8;
  if (!mixed && (method == "awq" || method == "gptq" || method == "auto-round")) {
    out.kind = Kind::kInt4Group;
    return out;
  }
  if (!mixed && (method == "mxfp4" || method == "gpt_oss_mxfp4")) {
    out.kind = Kind::kMxfp4;
    return out;
  }
  if (!mixed && method == "bitsandbytes" && quantization.weight_bits == 4) {
    out.kind = Kind::kNf4;
    return out;
  }
  if (quantization.format == "NVFP4" || quantization.format == "W4A16_NVFP4") {
    out.kind = Kind::kNvfp4;
    return out;
  }
  if (quantization.format == "MXFP8") {
    out.kind = Kind::kMxfp8;
    return out;
  }
  const bool known_eight = method == "fp8" || method == "fbgemm_fp8" || method == "modelopt" ||
                           method == "compressed-tensors";
  if (!mixed && known_eight && eight) {
    out.kind = Kind::kPerTensor;
    if (quantization.block_rows > 0) {
      out.kind = Kind::kFp8Block;
      out.block_rows = quantization.block_rows;
      out.block_columns = quantization.block_columns;
    } else if (quantization.per_channel) {
      out.kind = Kind::kPerChannel;
    }
    return out;
  }
  if (!mixed && method == "compressed-tensors" && quantization.weight_bits == 4) {
    out.kind = quantization.weight_float
                   ? (quantization.group_size == 32 ? Kind::kMxfp4 : Kind::kNvfp4)
                   : Kind::kInt4Group;
    return out;
  }
  throw ConfigError(
      Problem{quantization.source, "quant_method",
              method + (quantization.format.empty() ? "" : " " + quantization.format),
              "fp8 (per tensor, channel or block), compressed-tensors of one kind, awq, gptq, "
              "auto-round, modelopt FP8 or NVFP4, mxfp4, bitsandbytes 4 bit",
              "no byte rules for this scheme yet"});
}

QuantScheme online_scheme(const std::string& method) {
  if (method == "fp8") {
    return {.kind = Kind::kPerTensor};
  }
  throw ConfigError(Problem{"command line", "--quantization", method,
                            "fp8, for a checkpoint that is not quantised", ""});
}

std::vector<QuantTensor> quantised_tensors(const QuantScheme& scheme, const LinearShape& shape,
                                           DType model_dtype, bool unpacked_zeros) {
  const std::int64_t rows = sum_of(shape.parts);
  const std::int64_t all = product(product(rows, shape.columns), shape.experts);
  const auto parts = static_cast<std::int64_t>(shape.parts.size());
  const auto per_group = [&](std::int64_t group) {
    const std::int64_t groups = group > 0 ? div_ceil(shape.columns, group) : 1;
    return product(product(rows, groups), shape.experts);
  };
  std::vector<QuantTensor> out;
  const auto add = [&](std::string_view suffix, DType dtype, std::int64_t elements) {
    out.push_back(
        {suffix, suffix.empty() ? WeightLeaf::kWeights : WeightLeaf::kScales, dtype, elements});
  };
  switch (scheme.kind) {
    case Kind::kFp8Block: {
      std::int64_t row_blocks = 0;
      if (shape.experts > 1) {
        for (const std::int64_t part : shape.parts) {
          row_blocks += div_ceil(part, scheme.block_rows);
        }
      } else {
        row_blocks = div_ceil(rows, scheme.block_rows);
      }
      add("", DType::kFloat8, all);
      add("_scale_inv", scheme.byte_scales ? DType::kFloat8 : DType::kFloat32,
          product(product(row_blocks, div_ceil(shape.columns, scheme.block_columns)),
                  shape.experts));
      break;
    }
    case Kind::kPerTensor:
      add("", DType::kFloat8, all);
      add("_scale", DType::kFloat32, shape.experts);
      break;
    case Kind::kPerChannel:
      add("", DType::kFloat8, all);
      add("_scale", DType::kFloat32, product(rows, shape.experts));
      break;
    case Kind::kInt4Group: {
      const bool eight = scheme.weight_bits == 8;
      add("", eight ? DType::kInt8 : DType::kInt4, all);
      add("_scale", model_dtype, per_group(scheme.group));
      if (scheme.zero_points) {
        const DType packed = eight ? DType::kInt8 : DType::kInt4;
        add("_zeros", unpacked_zeros ? model_dtype : packed, per_group(scheme.group));
      }
      break;
    }
    case Kind::kNvfp4:
      add("", DType::kFloat4, all);
      // Scales lie in tiles of 128 rows x 4 groups.
      add("_scale", DType::kFloat8,
          product(
              product(align_up(rows, 128),
                      align_up(div_ceil(shape.columns, scheme.group > 0 ? scheme.group : 16), 4)),
              shape.experts));
      add("_scale_2", DType::kFloat32, product(parts, shape.experts));
      break;
    case Kind::kMxfp4:
      add("", DType::kFloat4, all);
      add("_scale", DType::kInt8, per_group(32));
      break;
    case Kind::kMxfp8:
      add("", DType::kFloat8, all);
      add("_scale", DType::kInt8, per_group(32));
      break;
    case Kind::kNf4:
      add("", DType::kInt4, all);
      add("_absmax", DType::kFloat32, div_ceil(all, 64));
      break;
  }
  if (scheme.input_scale && scheme.kind != Kind::kFp8Block) {
    add("_input_scale", DType::kFloat32, shape.experts);
  }
  return out;
}

}  // namespace oomcast::models
