// A made-up H100 that answers as the mechanisms say a card would: for tests, and for trying the way
// from samples to plans on a machine without a GPU. It says nothing of a real card.
#pragma once

#include <cstdint>

#include "sim/core/random.hpp"
#include "validation/schedule/device.hpp"

namespace oomcast::validation {

// Each within what was seen or is documented (facts pages `runtime` and `steptime`, by section),
// and where that is a range not at the preset, so that a calibration from it changes something.
struct SyntheticTruth {
  Bytes total{84'943'175'680};                        // 79.11 GiB, of 79.10 to 79.25 (runtime 2.2)
  Bytes context{Bytes{544} * std::int64_t{1 << 20}};  // 500 to 560 MiB (runtime 2.1)
  double context_kernel = 72.0 * 1024;  // assumed: an eighth more than the code itself
  Bytes context_eager{Bytes{905} * std::int64_t{1 << 20}};  // 361 MiB more (runtime 2.1)
  Bytes granule{2 << 20};                                   // runtime 2.2
  double pinned_share = 8.0 / 4096;          // assumed: an entry of 8 B for a page of 4 KiB
  Bytes cublas_handle{8 << 20};              // up to 10 MiB (runtime 3)
  Bytes cublas_first_gemm{56 << 20};         // 30 to 80 MiB (runtime 2.1)
  double graph_executable = 150.0 * 1024;    // preset 128 KiB, 50 % uncertain
  double graph_node = 7.2 * 1024;            // 6 to 10 KiB (runtime 11.1)
  double graph_copy = 3.1 * 1024;            // assumed
  double graph_pool_each = 2.0 * (1 << 20);  // assumed
  double hbm_bandwidth = 3.02e12;            // 90 % of the data sheet's 3.35e12
  double gemm_bandwidth_1 = 2.71e12;         // 81 %, medians 83 % (steptime 2)
  double gemm_flops_256 = 6.13e14;           // 62 %, 64 %
  double gemm_flops_2048 = 7.91e14;          // 80 %, 83 %
  double gemm_flops_8192 = 7.32e14;          // 74 %, 76 %
  double launch_seconds = 4e-6;              // 3 to 8 us (steptime 4)
  double dispatch_overlap = 0.82;            // assumed
  double transfer_bandwidth = 5.3e10;        // of PCIe 5's 64 GB/s (steptime 3)
  double transfer_overlap = 0.94;            // assumed
};

class SyntheticDevice : public Device {
 public:
  // `noise`: standard deviation of what is measured, as a share; bytes that drivers count to the
  // granule have none.
  SyntheticDevice(const SyntheticTruth& truth, std::uint64_t seed, double noise);

  [[nodiscard]] Card card() override;
  [[nodiscard]] CardUse use() override;
  [[nodiscard]] Values measure(const std::string& probe, const Settings& settings) override;
  [[nodiscard]] double seconds() override { return seconds_; }
  [[nodiscard]] std::vector<std::string> left_out() override;

 private:
  double noisy(double value);
  Values answer(const std::string& probe, const Settings& settings);

  SyntheticTruth truth_;
  RandomStream random_;
  double noise_;
  double seconds_ = 0;
};

}  // namespace oomcast::validation
