// The catalog of GPUs: models/gpus/*.json, one file a card. Every figure there carries its source
// and, where it is not a measurement of that card, its uncertainty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/dtype.hpp"
#include "sim/core/units.hpp"

namespace oomcast::models {

// Dense matrix rates of one element type, and which share of them kernels reach.
struct GemmRates {
  double peak_flops = 0;                // per second, dense; 0: the card has none of this type
  double bandwidth_share_large = 0.75;  // of HBM bandwidth at 1 row, matrices of 3e7 and more
  double bandwidth_share_small = 0.6;   // matrices of 8e6 to 3e7
  double flops_share_256 = 0.6;         // of peak at 256, 2048 and 8192 rows
  double flops_share_2048 = 0.8;
  double flops_share_8192 = 0.75;
};

struct AttentionRates {
  // Share of HBM bandwidth at (sequences, context): (1, 16k) (16, 8k) (64, 1k) (64, 4k) (256, 1k).
  double decode_1_16k = 0.49;
  double decode_16_8k = 0.76;
  double decode_64_1k = 0.72;
  double decode_64_4k = 0.85;
  double decode_256_1k = 0.85;
  // The same at (16, 8k) of other kernels and KV dtypes; 0: not measured.
  double decode_fp8_kv = 0;
  double decode_flashinfer_fa2_fp8_kv = 0;  // FlashInfer without TensorRT-LLM's kernels
  // Share of bf16 peak for prompts of 1k, 4k and 16k.
  double prefill_1k = 0.26;
  double prefill_4k = 0.53;
  double prefill_16k = 0.66;
};

struct GpuSpec {
  std::string name;    // as nvidia-smi and torch print it
  std::string vendor;  // "nvidia" or "amd"
  std::vector<std::string> aliases;
  Bytes nvml_total;                // as nvidia-smi prints it
  Bytes device_total;              // as cudaMemGetInfo and torch see it
  Bytes device_total_uncertainty;  // 0: recorded on this card; drivers still move it by ~0.1 GiB
  bool unified_memory = false;     // shares the memory with the host (GB10)
  double bandwidth = 0;            // HBM bytes per second
  GemmRates bf16;                  // fp16 on cards without bf16
  GemmRates fp8;
  GemmRates fp4;
  AttentionRates attention;     // 16-bit KV
  std::string efficiency_from;  // the card whose measurements the shares come from
  int sm_count = 0;
  int threads_per_sm = 0;
  int compute_major = 0;
  int compute_minor = 0;
  double nvlink_bandwidth = 0;  // total of both directions, bytes per second; 0: PCIe only
  // To pinned host memory in one direction, as copies reach it; 0: none, or not known.
  double host_link_bandwidth = 0;
  Bytes l2_bytes;
  // CUDA context of one process: 8 MiB + SM x threads x 1.94 KiB (facts "runtime" 2.1).
  Bytes context_bytes;
  std::vector<std::string> notes;
};

// By the printed name or an alias, case-blind; blanks, dashes and underscores count alike. Throws
// ConfigError with the nearest names.
GpuSpec find_gpu(std::string_view name);

// The printed names, sorted.
std::vector<std::string> gpu_names();

}  // namespace oomcast::models
