// Workspaces and scratch of matrix products: shapes in, named buffers out. Sources: facts page
// `runtime` sections 3 and 8, and the sources it names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpu.hpp"
#include "sim/core/error.hpp"
#include "sim/core/version.hpp"
#include "sim/kernels/buffer.hpp"

namespace oomcast::kernels {

// --- cuBLAS in PyTorch (ATen/cuda/CublasHandlePool.cpp)

// One workspace a (handle, stream) pair, made at the first product there: 8,519,680 B, or 32 MiB on
// the generations that PyTorch's version names.
Bytes cublas_default_workspace(const Version& torch, const models::GpuSpec& gpu);

// CUBLAS_WORKSPACE_CONFIG as PyTorch reads it: every ":KiB:count" found in the text is summed, what
// lies between is passed over; none found: the default, with a warning. Numbers that do not fit, or
// a sum of more than 1 TiB, go to `problems`, and the default is returned.
Bytes cublas_workspace_config(std::string_view text, Bytes fallback, Problems& problems,
                              std::vector<std::string>& warnings);

struct CublasUse {
  Version torch;
  std::int64_t streams = 1;           // that run products; a graph's capture stream counts
  std::optional<Bytes> workspace;     // from CUBLAS_WORKSPACE_CONFIG
  std::optional<Bytes> lt_workspace;  // from CUBLASLT_WORKSPACE_SIZE, KiB
};

// cuBLASLt has its own workspace a call before PyTorch 2.8; since then it shares cuBLAS'.
std::vector<Buffer> cublas(const CublasUse& use, const models::GpuSpec& gpu);

// FlashInfer keeps 32 MiB for each of its GEMM operators in use.
std::vector<Buffer> flashinfer_gemm(std::int64_t operators);

// --- Quantised activations

enum class ActivationScales : std::uint8_t {
  kFp8Tensor,    // fp8, one fp32 scale
  kFp8Token,     // fp8, one fp32 scale a row
  kFp8Block128,  // fp8, one fp32 scale a row and 128 columns; rows padded to 4 (16 B for TMA)
  kMxfp8,        // fp8, one byte a row and 32 columns, rows padded to 128, column groups to 4
  kNvfp4,        // 4 bits, one byte a row and 16 columns, padded likewise
};

// The copy of a [rows, cols] activation that a quantised product reads, and its scales.
std::vector<Buffer> quantised_activation(std::int64_t rows, std::int64_t cols,
                                         ActivationScales scales);

// DeepGEMM makes nothing of its own: the quantised input, scales in the layout TMA wants.
std::vector<Buffer> deep_gemm(std::int64_t rows, std::int64_t cols);

// --- Marlin

struct MarlinProduct {
  std::int64_t rows = 1;
  std::int64_t cols = 1;  // K
  bool fp32_reduce = true;
  bool act_order = false;  // columns are permuted into a copy
};

// Locks (kept a layer) and the partial sums of blocks that share a tile (not re-verified).
std::vector<Buffer> marlin(const MarlinProduct& shape, const models::GpuSpec& gpu);

}  // namespace oomcast::kernels
