// cuBLAS and cuBLASLt: what their handles take, and how fast matrix products are.
#include "validation/probes/child.hpp"
#include "validation/probes/cuda_support.cuh"
#include "validation/probes/probes.hpp"
#include "validation/schedule/probe_shapes.hpp"

#ifdef OOMCAST_HAS_CUBLAS
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#endif

namespace oomcast::validation {

#ifdef OOMCAST_HAS_CUBLAS

namespace {

void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_ALLOC_FAILED) {
    throw OutOfMemory(what);
  }
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw DeviceFailure(std::string(what) + ": cuBLAS status " +
                        std::to_string(static_cast<int>(status)));
  }
}

class Handle {
 public:
  Handle() { check_cublas(cublasCreate(&handle_), "cublasCreate"); }
  ~Handle() { cublasDestroy(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cublasHandle_t get() const { return handle_; }

 private:
  cublasHandle_t handle_ = nullptr;
};

// out[rows][side] = in[rows][side] * matrix[side][side], in bf16 with sums in fp32. cuBLAS counts
// by columns, so the matrix comes first.
void multiply(const Handle& handle, const Buffer& matrix, const Buffer& in, const Buffer& out,
              std::int64_t rows, std::int64_t side) {
  const float one = 1;
  const float zero = 0;
  const auto n = static_cast<int>(side);
  check_cublas(
      cublasGemmEx(handle.get(), CUBLAS_OP_T, CUBLAS_OP_N, n, static_cast<int>(rows), n, &one,
                   matrix.as<void>(), CUDA_R_16BF, n, in.as<void>(), CUDA_R_16BF, n, &zero,
                   out.as<void>(), CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx");
}

void clear(const Buffer& buffer) {
  check(cudaMemset(buffer.as<void>(), 0, static_cast<std::size_t>(buffer.bytes())), "cudaMemset");
}

constexpr std::int64_t kElement = 2;

}  // namespace

// PyTorch gives cuBLAS its workspace, so the handle is given one here too.
void cublas_child(const Settings&) {
  constexpr std::int64_t kSide = 1024;
  constexpr std::int64_t kWorkspace = std::int64_t{32} << 20;
  check(cudaFree(nullptr), "a context");
  const Buffer a(kSide * kSide * kElement);
  const Buffer b(kSide * kSide * kElement);
  const Buffer c(kSide * kSide * kElement);
  const Buffer workspace(kWorkspace);
  clear(a);
  clear(b);
  check(cudaDeviceSynchronize(), "a context");
  step_done();
  const Handle handle;
  check_cublas(
      cublasSetWorkspace(handle.get(), workspace.as<void>(), static_cast<std::size_t>(kWorkspace)),
      "cublasSetWorkspace");
  step_done();
  multiply(handle, a, b, c, kSide, kSide);
  check(cudaDeviceSynchronize(), "a product");
  step_done();
}

Values cublas_probe(const Settings& settings) {
  const auto steps = steps_of_child("cublas", settings, 3);
  return {{"handle_bytes", static_cast<double>(steps[1])},
          {"first_gemm_bytes", static_cast<double>(steps[2])}};
}

// What the algorithm that the heuristic puts first asks for, of the 32 MiB it may have.
Values cublaslt_probe(const Settings& settings) {
  constexpr std::size_t kMost = std::size_t{32} << 20;
  const auto side = static_cast<std::uint64_t>(kGemmSide);
  const auto rows = static_cast<std::uint64_t>(settings.at("rows"));
  cublasLtHandle_t handle = nullptr;
  check_cublas(cublasLtCreate(&handle), "cublasLtCreate");
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t matrix = nullptr;
  cublasLtMatrixLayout_t in = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t first{};
  int found = 0;
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const auto steps = [&]() -> cublasStatus_t {
    cublasStatus_t status = cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto then = [&](cublasStatus_t next) {
      status = status == CUBLAS_STATUS_SUCCESS ? next : status;
    };
    then(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                        sizeof(transposed)));
    then(cublasLtMatrixLayoutCreate(&matrix, CUDA_R_16BF, side, side,
                                    static_cast<std::int64_t>(side)));
    then(cublasLtMatrixLayoutCreate(&in, CUDA_R_16BF, side, rows, static_cast<std::int64_t>(side)));
    then(
        cublasLtMatrixLayoutCreate(&out, CUDA_R_16BF, side, rows, static_cast<std::int64_t>(side)));
    then(cublasLtMatmulPreferenceCreate(&preference));
    then(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &kMost, sizeof(kMost)));
    then(cublasLtMatmulAlgoGetHeuristic(handle, product, matrix, in, out, out, preference, 1,
                                        &first, &found));
    return status;
  };
  const cublasStatus_t status = steps();
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(out);
  cublasLtMatrixLayoutDestroy(in);
  cublasLtMatrixLayoutDestroy(matrix);
  cublasLtMatmulDescDestroy(product);
  cublasLtDestroy(handle);
  check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  if (found == 0) {
    throw Unsupported("cuBLASLt has no algorithm for this shape");
  }
  return {{"workspace_bytes", static_cast<double>(first.workspaceSize)}};
}

Values gemm_probe(const Settings& settings) {
  const std::int64_t rows = settings.at("rows");
  const Buffer matrix(kGemmSide * kGemmSide * kElement);
  const Buffer in(rows * kGemmSide * kElement);
  const Buffer out(rows * kGemmSide * kElement);
  clear(matrix);
  clear(in);
  const Handle handle;
  const Stream stream;
  check_cublas(cublasSetStream(handle.get(), stream.get()), "cublasSetStream");
  const double seconds = seconds_of(
      stream, 20, [&](const Stream&) { multiply(handle, matrix, in, out, rows, kGemmSide); });
  const auto side = static_cast<double>(kGemmSide);
  return {{"seconds", seconds},
          {"flops_per_second", 2 * static_cast<double>(rows) * side * side / seconds},
          {"bytes_per_second", static_cast<double>(matrix.bytes()) / seconds}};
}

#else

namespace {
[[noreturn]] void not_built() { throw Unsupported("cuBLAS was not found when this was built"); }
}  // namespace

void cublas_child(const Settings&) { not_built(); }
Values cublas_probe(const Settings&) { not_built(); }
Values cublaslt_probe(const Settings&) { not_built(); }
Values gemm_probe(const Settings&) { not_built(); }

#endif

}  // namespace oomcast::validation
