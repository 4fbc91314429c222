#include "models/dtype.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace oomcast::models {

std::int64_t bits_of(DType dtype) {
  switch (dtype) {
    case DType::kInt64:
      return 64;
    case DType::kFloat32:
    case DType::kInt32:
      return 32;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 16;
    case DType::kFloat8:
    case DType::kInt8:
      return 8;
    case DType::kFloat4:
    case DType::kInt4:
      return 4;
  }
  return 0;
}

Bytes bytes_of(DType dtype, std::int64_t elements) {
  return Bytes{div_ceil((Bytes{elements} * bits_of(dtype)).count(), 8)};
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat8:
      return "float8";
    case DType::kFloat4:
      return "float4";
    case DType::kInt64:
      return "int64";
    case DType::kInt32:
      return "int32";
    case DType::kInt8:
      return "int8";
    case DType::kInt4:
      return "int4";
  }
  return "";
}

std::optional<DType> parse_dtype(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  std::string_view name = lower;
  if (name.starts_with("torch.")) {
    name.remove_prefix(6);
  }
  static constexpr std::array<std::pair<std::string_view, DType>, 25> kNames = {{
      {"float32", DType::kFloat32},      {"float", DType::kFloat32},
      {"fp32", DType::kFloat32},         {"bfloat16", DType::kBFloat16},
      {"bf16", DType::kBFloat16},        {"float16", DType::kFloat16},
      {"half", DType::kFloat16},         {"fp16", DType::kFloat16},
      {"float8_e4m3fn", DType::kFloat8}, {"float8_e5m2", DType::kFloat8},
      {"fp8", DType::kFloat8},           {"fp8_e4m3", DType::kFloat8},
      {"fp8_e5m2", DType::kFloat8},      {"fp8_inc", DType::kFloat8},
      {"float8", DType::kFloat8},        {"fp4", DType::kFloat4},
      {"float4", DType::kFloat4},        {"nvfp4", DType::kFloat4},
      {"mxfp4", DType::kFloat4},         {"int64", DType::kInt64},
      {"int32", DType::kInt32},          {"int8", DType::kInt8},
      {"uint8", DType::kInt8},           {"int4", DType::kInt4},
      {"uint4", DType::kInt4},
  }};
  for (const auto& [known, dtype] : kNames) {
    if (name == known) {
      return dtype;
    }
  }
  return std::nullopt;
}

}  // namespace oomcast::models
