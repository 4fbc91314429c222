#include "sim/kernels/moe.hpp"

#include <algorithm>

#include "sim/kernels/moe_shape.hpp"
#include "sim/kernels/preset.hpp"

namespace oomcast::kernels {
namespace {

constexpr std::int64_t kVllmAlignment = 256;
constexpr std::int64_t kDeepGemmAlignment = 128;
constexpr std::int64_t kInt = 4;
constexpr std::int64_t kFloat = 4;
constexpr std::int64_t kScaleGroup = 128;

// Elements of the two pieces, and how they are said.
struct Pieces {
  std::int64_t first = 0;
  std::string first_formula;
  std::int64_t second = 0;
  std::string second_formula;
};

Pieces pieces_of(const ExpertShape& shape, ExpertKernel kernel) {
  const std::int64_t n = routed_rows(shape);
  const std::int64_t hidden = shape.hidden;
  const std::int64_t width = shape.width;
  const std::int64_t first = shape.gated ? 2 * width : width;
  const std::string first_or_hidden = shape.gated ? "max(2I, H)" : "max(I, H)";
  switch (kernel) {
    case ExpertKernel::kTriton:
      return {product(n, std::max(width, hidden)), "n x max(I, H)",
              product(n, std::max(first, hidden)), "n x " + first_or_hidden};
    case ExpertKernel::kMarlin:  // counts a gate always
      return {product(n, std::max(width, hidden)), "n x max(I, H)",
              product(n, std::max(2 * width, hidden)), "n x max(2I, H)"};
    case ExpertKernel::kDeepGemm: {
      const std::int64_t rows = deep_gemm_rows(shape, kDeepGemmAlignment);
      // fp8 rows, counted in elements of the activation type.
      return {div_ceil(product(rows, std::max(width, hidden)), shape.element_bytes),
              "up(n + E_l x 127, 128) x max(I, H) fp8", product(rows, std::max(first, hidden)),
              "up(n + E_l x 127, 128) x " + first_or_hidden};
    }
    case ExpertKernel::kCutlassFp8:
      return {product(n, std::max(first, hidden)), "n x " + first_or_hidden,
              product(n, std::max(width, hidden)), "n x max(I, H)"};
    case ExpertKernel::kCutlassFp4:
      return {product(n, std::max(4 * width, hidden)), "n x max(4I, H)", product(n, 2 * width),
              "n x 2I"};
    case ExpertKernel::kGptOssTriton:
      return {0, "0", product(n, width), "n x I"};
    case ExpertKernel::kFlashInferCutlass:
    case ExpertKernel::kTrtllmGen:
      break;
  }
  return {0, "0", 0, "0"};
}

Buffer piece(std::string_view name, std::string formula, std::int64_t bytes) {
  return {name, std::move(formula), Bytes{align_up(bytes, kVllmAlignment)}, Lifetime::kPersistent};
}

}  // namespace

std::int64_t routed_rows(const ExpertShape& shape) {
  return product(shape.tokens, shape.experts_per_token);
}

void check_experts(const char* kernel, const ExpertShape& shape) {
  constexpr std::int64_t kMostExperts = 1 << 20;
  constexpr std::int64_t kMostWidth = std::int64_t{1} << 31;
  ShapeCheck{kernel}
      .positive("tokens", shape.tokens)
      .between("experts", shape.experts, 1, kMostExperts)
      .between("experts per token", shape.experts_per_token, 1,
               std::max<std::int64_t>(shape.experts, 1))
      .between("local experts", shape.local_experts, 1, std::max<std::int64_t>(shape.experts, 1))
      .between("hidden size", shape.hidden, 1, kMostWidth)
      .between("expert width", shape.width, 1, kMostWidth)
      .between("element bytes", shape.element_bytes, 1, 8)
      .raise_if_any();
}

std::vector<Buffer> vllm_expert_workspace(const ExpertShape& shape, ExpertKernel kernel) {
  check_experts("vLLM experts", shape);
  const Pieces pieces = pieces_of(shape, kernel);
  const std::int64_t output = product(shape.tokens, shape.hidden);
  const bool output_is_larger = output > pieces.first;
  return {piece("expert workspace 13", (output_is_larger ? "M x H" : pieces.first_formula) + " x b",
                product(std::max(output, pieces.first), shape.element_bytes)),
          piece("expert workspace 2", pieces.second_formula + " x b",
                product(pieces.second, shape.element_bytes))};
}

std::vector<Buffer> vllm_batched_expert_workspace(const ExpertShape& shape,
                                                  std::int64_t tokens_per_dispatcher,
                                                  std::int64_t dispatchers) {
  check_experts("vLLM batched experts", shape);
  ShapeCheck{"vLLM batched experts"}
      .positive("tokens per dispatcher", tokens_per_dispatcher)
      .positive("dispatchers", dispatchers)
      .raise_if_any();
  const std::int64_t rows = product(shape.local_experts, tokens_per_dispatcher, dispatchers);
  return {piece("expert workspace 13", "E_l x T x dispatchers x max(H, 2I) x b",
                product(rows, std::max(shape.hidden, 2 * shape.width), shape.element_bytes)),
          piece("expert workspace 2", "E_l x T x dispatchers x I x b",
                product(rows, shape.width, shape.element_bytes))};
}

std::optional<std::int64_t> vllm_expert_chunk(const Version& version) {
  return preset_count({"kernels/moe.json", "vllm.expert_chunk", version});
}

std::vector<Buffer> triton_experts(const ExpertShape& shape, TritonCaches caches,
                                   std::optional<std::int64_t> chunk) {
  check_experts("Triton experts", shape);
  ShapeCheck{"Triton experts"}.positive("chunk", chunk.value_or(1)).raise_if_any();
  const std::int64_t rows =
      product(std::min(shape.tokens, chunk.value_or(shape.tokens)), shape.experts_per_token);
  const std::int64_t b = shape.element_bytes;
  std::vector<Buffer> buffers;
  if (caches == TritonCaches::kShared) {
    buffers.push_back({"outputs of both products", "Mc x k x max(2I, H) x b",
                       Bytes{product(rows, std::max(2 * shape.width, shape.hidden), b)}});
  } else {
    buffers.push_back({"output of the first product", "Mc x k x 2I x b",
                       Bytes{product(rows, 2 * shape.width, b)}});
    buffers.push_back(
        {"output of the second product", "Mc x k x H x b", Bytes{product(rows, shape.hidden, b)}});
  }
  buffers.push_back({"activated", "Mc x k x I x b", Bytes{product(rows, shape.width, b)}});
  buffers.push_back({"output", "M x H x b", Bytes{product(shape.tokens, shape.hidden, b)}});
  return buffers;
}

std::vector<Buffer> fp8_expert_inputs(const ExpertShape& shape) {
  check_experts("fp8 experts", shape);
  const std::int64_t n = routed_rows(shape);
  return {{"quantised input", "M x H", Bytes{product(shape.tokens, shape.hidden)}},
          {"scales of the input", "M x ceil(H/128) x 4",
           Bytes{product(shape.tokens, div_ceil(shape.hidden, kScaleGroup), kFloat)}},
          {"quantised activation", "n x I", Bytes{product(n, shape.width)}},
          {"scales of the activation", "n x ceil(I/128) x 4",
           Bytes{product(n, div_ceil(shape.width, kScaleGroup), kFloat)}}};
}

std::vector<Buffer> expert_alignment(const ExpertShape& shape, std::int64_t block) {
  check_experts("expert alignment", shape);
  constexpr std::int64_t kMostBlock = 1024;
  ShapeCheck{"expert alignment"}.between("block", block, 1, kMostBlock).raise_if_any();
  const std::int64_t n = routed_rows(shape);
  std::int64_t sorted = n + product(shape.experts, block - 1);
  if (n < shape.experts) {
    sorted = std::min(sorted, product(n, block));
  }
  return {{"sorted rows", "(n + E x (block - 1)) x 4", Bytes{product(sorted, kInt)}},
          {"experts of blocks", "ceil(sorted rows / block) x 4",
           Bytes{product(div_ceil(sorted, block), kInt)}},
          {"padded row count", "4", Bytes{kInt}},
          {"row offsets", "(E + 1) x 4", Bytes{product(shape.experts + 1, kInt)}}};
}

std::vector<Buffer> expert_router(const ExpertShape& shape, std::int64_t logit_bytes) {
  check_experts("router", shape);
  ShapeCheck{"router"}.between("logit bytes", logit_bytes, 1, 8).raise_if_any();
  const std::int64_t n = routed_rows(shape);
  return {{"router logits", "M x E x b", Bytes{product(shape.tokens, shape.experts, logit_bytes)}},
          {"expert weights", "n x 4", Bytes{product(n, kFloat)}},
          {"expert ids", "n x 4", Bytes{product(n, kInt)}}};
}

}  // namespace oomcast::kernels
