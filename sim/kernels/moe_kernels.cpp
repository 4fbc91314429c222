// Experts whose kernels bring buffers of their own: Marlin, DeepGEMM, CUTLASS, trtllm-gen.
#include <fmt/format.h>

#include <algorithm>

#include "sim/kernels/moe.hpp"
#include "sim/kernels/moe_shape.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kInt = 4;
constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kScaleGroup = 128;

void check_rows(const char* kernel, const char* name, std::int64_t value) {
  ShapeCheck{kernel}.between(name, value, 1, ShapeCheck::kMost).raise_if_any();
}

// Bytes of `elements` of the type CUTLASS' experts compute in.
std::int64_t input_bytes(CutlassType type, std::int64_t elements) {
  switch (type) {
    case CutlassType::kBf16:
      return product(elements, 2);
    case CutlassType::kFp8:
    case CutlassType::kFp8Block:
      return elements;
    case CutlassType::kNvfp4:
      break;
  }
  return div_ceil(elements, 2);
}

Buffer aligned(std::string_view name, std::string formula, std::int64_t bytes) {
  constexpr std::int64_t kAlignment = 128;
  return {name, std::move(formula), Bytes{align_up(bytes, kAlignment)}};
}

}  // namespace

std::vector<Buffer> marlin_experts(const ExpertShape& shape, const models::GpuSpec& gpu) {
  check_experts("Marlin experts", shape);
  constexpr std::int64_t kBlocksPerSm = 4;
  auto buffers = triton_experts(shape, TritonCaches::kShared, std::nullopt);
  buffers.push_back({"locks", "SMs x 4 x 4", Bytes{product(gpu.sm_count, kBlocksPerSm, kInt)},
                     Lifetime::kPersistent});
  return buffers;
}

std::int64_t deep_gemm_rows(const ExpertShape& shape, std::int64_t alignment) {
  check_experts("DeepGEMM experts", shape);
  check_rows("DeepGEMM experts", "alignment", alignment);
  return align_up(
      detail::checked_add(routed_rows(shape), product(shape.local_experts, alignment - 1)),
      alignment);
}

std::vector<Buffer> deep_gemm_contiguous(const ExpertShape& shape, std::int64_t alignment) {
  const std::int64_t rows = deep_gemm_rows(shape, alignment);
  const std::int64_t b = shape.element_bytes;
  return {{"workspace 1", "R x max(I, H) x b",
           Bytes{product(rows, std::max(shape.width, shape.hidden), b)}},
          {"workspace 2", "R x max(2I, H) x b",
           Bytes{product(rows, std::max(2 * shape.width, shape.hidden), b)}},
          {"output", "M x H x b", Bytes{product(shape.tokens, shape.hidden, b)}},
          {"permuted fp8 input", "R x H", Bytes{product(rows, shape.hidden)}},
          {"scales of the permuted input", "R x ceil(H/128) x 4",
           Bytes{product(rows, div_ceil(shape.hidden, kScaleGroup), kFloat)}}};
}

std::vector<Buffer> deep_gemm_masked(const ExpertShape& shape, std::int64_t rows_per_expert) {
  check_experts("masked DeepGEMM experts", shape);
  check_rows("masked DeepGEMM experts", "rows per expert", rows_per_expert);
  const std::int64_t rows = product(shape.local_experts, rows_per_expert);
  const std::int64_t b = shape.element_bytes;
  return {
      {"output of the first product", "E_l x T x max(H, 2I) x b",
       Bytes{product(rows, std::max(shape.hidden, 2 * shape.width), b)}},
      {"activated", "E_l x T x I x b", Bytes{product(rows, shape.width, b)}},
      {"output of the second product", "E_l x T x H x b", Bytes{product(rows, shape.hidden, b)}}};
}

std::vector<Buffer> cutlass_experts(const ExpertShape& shape, CutlassType type) {
  check_experts("CUTLASS experts", shape);
  constexpr std::int64_t kOutputBytes = 2;
  constexpr std::int64_t kOffsetBytes = 8;
  const std::int64_t n = routed_rows(shape);
  const std::int64_t hidden_rows = product(n, shape.hidden);
  const std::int64_t width_rows = product(n, shape.width);
  std::vector<Buffer> buffers = {
      aligned("permuted input", "max(n x H x dt, n x I x dt, n x H x 2)",
              std::max({input_bytes(type, hidden_rows), input_bytes(type, width_rows),
                        product(hidden_rows, kOutputBytes)})),
      aligned("first product", "max(n x 2I x 2, n x H x 2, n x I x dt)",
              std::max({product(width_rows, 2, kOutputBytes), product(hidden_rows, kOutputBytes),
                        input_bytes(type, width_rows)})),
      aligned("row maps", "2 x n x 4", product(2, n, kInt)),
      aligned("expert offsets", "(E_l + 1) x 8", product(shape.local_experts + 1, kOffsetBytes))};
  if (type == CutlassType::kFp8Block) {
    buffers.push_back(aligned("activated", "n x I x 2", product(width_rows, kOutputBytes)));
  }
  if (type == CutlassType::kNvfp4) {
    constexpr std::int64_t kScaleRows = 128;
    constexpr std::int64_t kFp4Group = 16;
    const std::int64_t rows =
        align_up(n + product(shape.local_experts, kScaleRows - 1), kScaleRows);
    buffers.push_back(aligned("scales of the input", "up(n + E_l x 127, 128) x H/16",
                              product(rows, div_ceil(shape.hidden, kFp4Group))));
    buffers.push_back(aligned("scales of the activation", "up(n + E_l x 127, 128) x I/16",
                              product(rows, div_ceil(shape.width, kFp4Group))));
  }
  return buffers;
}

std::vector<Buffer> trtllm_gen_experts(const ExpertShape& shape, std::int64_t tile) {
  check_experts("trtllm-gen experts", shape);
  check_rows("trtllm-gen experts", "tile", tile);
  const std::int64_t rows =
      detail::checked_add(routed_rows(shape), product(shape.local_experts, tile - 1));
  const auto part = [&](std::string_view name, const char* width_name, std::int64_t width) {
    return Buffer{name, fmt::format("(n + E_l x {}) x {} x b", tile - 1, width_name),
                  Bytes{product(rows, width, shape.element_bytes)}, Lifetime::kPersistent,
                  Backing::kDriver};
  };
  return {part("permuted input", "H", shape.hidden), part("first product", "2I", 2 * shape.width),
          part("second product", "H", shape.hidden)};
}

}  // namespace oomcast::kernels
