#include "sim/kernels/gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "sim/kernels/preset.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kFloat = 4;
constexpr const char* kFile = "kernels/gemm.json";
constexpr const char* kConfigVariable = "CUBLAS_WORKSPACE_CONFIG";

// ":123" at the start of `text`: the digits, or nothing.
std::string_view number_field(std::string_view text) {
  if (!text.starts_with(':')) {
    return {};
  }
  const std::size_t end = text.find_first_not_of("0123456789", 1);
  return text.substr(1, (end == std::string_view::npos ? text.size() : end) - 1);
}

std::optional<std::int64_t> as_count(std::string_view digits) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return error == std::errc{} && value <= ShapeCheck::kMost ? std::optional(value) : std::nullopt;
}

struct ScaleLayout {
  std::int64_t group;        // columns a scale stands for; 0: all
  std::int64_t row_padding;  // rows are padded to
  std::int64_t group_padding;
  std::int64_t scale_bytes;
  std::int64_t values_per_byte;
};

ScaleLayout layout_of(ActivationScales scales) {
  switch (scales) {
    case ActivationScales::kFp8Tensor:
    case ActivationScales::kFp8Token:
      return {0, 1, 1, kFloat, 1};
    case ActivationScales::kFp8Block128:
      return {128, 4, 1, kFloat, 1};
    case ActivationScales::kMxfp8:
      return {32, 128, 4, 1, 1};
    case ActivationScales::kNvfp4:
      break;
  }
  return {16, 128, 4, 1, 2};
}

std::string scale_formula(ActivationScales scales, const ScaleLayout& layout) {
  if (scales == ActivationScales::kFp8Tensor) {
    return "4";
  }
  return layout.group == 0 ? "M x 4"
                           : fmt::format("up(M, {}) x up(K/{}, {}) x {}", layout.row_padding,
                                         layout.group, layout.group_padding, layout.scale_bytes);
}

}  // namespace

Bytes cublas_default_workspace(const Version& torch, const models::GpuSpec& gpu) {
  return preset_bytes({kFile, "torch.cublas", torch, &gpu}).value_or(Bytes{0});
}

Bytes cublas_workspace_config(std::string_view text, Bytes fallback, Problems& problems,
                              std::vector<std::string>& warnings) {
  constexpr std::size_t kMostText = 4096;
  if (text.size() > kMostText) {
    problems.add({"environment", kConfigVariable, std::string{text.substr(0, 40)} + "...",
                  "at most 4096 characters", ""});
    return fallback;
  }
  const Bytes most{ShapeCheck::kMost};
  Bytes sum;
  bool found = false;
  for (std::size_t at = text.find(':'); at < text.size(); at = text.find(':', at)) {
    const std::string_view kib = number_field(text.substr(at));
    const std::string_view count =
        kib.empty() ? kib : number_field(text.substr(at + 1 + kib.size()));
    if (count.empty()) {
      ++at;
      continue;
    }
    found = true;
    at += 2 + kib.size() + count.size();
    const auto size = as_count(kib);
    const auto copies = as_count(count);
    // The size alone is at most 2^40 KiB and the count 2^40: divide rather than multiply.
    const bool fits =
        size && copies && (*size == 0 || *copies <= (most - sum).count() / kKiB.count() / *size);
    if (!fits) {
      problems.add({"environment", kConfigVariable, std::string{text},
                    "sizes in KiB and counts that sum to at most 1 TiB", ""});
      return fallback;
    }
    sum += kKiB * *size * *copies;
  }
  if (!found) {
    warnings.push_back(fmt::format("{}: could not parse `{}`, the default of {} bytes is used",
                                   kConfigVariable, text, fallback.count()));
    return fallback;
  }
  return sum;
}

std::vector<Buffer> cublas(const CublasUse& use, const models::GpuSpec& gpu) {
  constexpr std::int64_t kMostStreams = 1 << 16;
  ShapeCheck{"cuBLAS"}.between("streams", use.streams, 0, kMostStreams).raise_if_any();
  const Bytes workspace = use.workspace.value_or(cublas_default_workspace(use.torch, gpu));
  std::vector<Buffer> buffers = {{"cuBLAS workspace",
                                  fmt::format("{} streams x {}", use.streams, workspace.count()),
                                  workspace * use.streams, Lifetime::kPersistent}};
  if (const auto own = preset_bytes({kFile, "torch.cublaslt", use.torch, &gpu})) {
    buffers.push_back(
        {"cuBLASLt workspace", "CUBLASLT_WORKSPACE_SIZE", use.lt_workspace.value_or(*own)});
  }
  return buffers;
}

std::vector<Buffer> flashinfer_gemm(std::int64_t operators) {
  constexpr std::int64_t kMostOperators = 1 << 10;
  ShapeCheck{"FlashInfer GEMM"}.between("operators", operators, 0, kMostOperators).raise_if_any();
  return {{"FlashInfer GEMM workspaces", fmt::format("{} operators x 32 MiB", operators),
           32 * kMiB * operators, Lifetime::kPersistent}};
}

std::vector<Buffer> quantised_activation(std::int64_t rows, std::int64_t cols,
                                         ActivationScales scales) {
  ShapeCheck{"quantised activation"}.positive("rows", rows).positive("cols", cols).raise_if_any();
  const ScaleLayout layout = layout_of(scales);
  const std::int64_t scale_rows =
      scales == ActivationScales::kFp8Tensor ? 1 : align_up(rows, layout.row_padding);
  const std::int64_t groups =
      layout.group == 0 ? 1 : align_up(div_ceil(cols, layout.group), layout.group_padding);
  const std::int64_t row_bytes = div_ceil(cols, layout.values_per_byte);
  return {{"quantised input", layout.values_per_byte == 2 ? "M x K/2" : "M x K",
           Bytes{product(rows, row_bytes)}},
          {"scales of the input", scale_formula(scales, layout),
           Bytes{product(scale_rows, groups, layout.scale_bytes)}}};
}

std::vector<Buffer> deep_gemm(std::int64_t rows, std::int64_t cols) {
  return quantised_activation(rows, cols, ActivationScales::kFp8Block128);
}

std::vector<Buffer> marlin(const MarlinProduct& shape, const models::GpuSpec& gpu) {
  ShapeCheck{"Marlin"}.positive("rows", shape.rows).positive("cols", shape.cols).raise_if_any();
  constexpr std::int64_t kBlocksPerSm = 4;
  constexpr std::int64_t kMostTileRows = 64;
  constexpr std::int64_t kTileCols = 256;
  std::vector<Buffer> buffers = {{"locks", "SMs x 4 x 4",
                                  Bytes{product(gpu.sm_count, kBlocksPerSm, kFloat)},
                                  Lifetime::kPersistent}};
  if (shape.fp32_reduce) {
    const std::int64_t tile_rows = std::min(align_up(shape.rows, 16), kMostTileRows);
    buffers.push_back({"partial sums", "SMs x min(up(M, 16), 64) x 256 x 4",
                       Bytes{product(gpu.sm_count, tile_rows, kTileCols, kFloat)}});
  }
  if (shape.act_order) {
    buffers.push_back({"permuted input", "M x K x 2", Bytes{product(shape.rows, shape.cols, 2)}});
  }
  return buffers;
}

}  // namespace oomcast::kernels
