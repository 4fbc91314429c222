#include "validation/schedule/synthetic_device.hpp"

#include <cmath>
#include <numbers>

#include "validation/schedule/probe_shapes.hpp"

namespace oomcast::validation {
namespace {

double at(const Settings& settings, const char* name) {
  return static_cast<double>(settings.at(name));
}

double number(Bytes bytes) { return static_cast<double>(bytes.count()); }

double granules(double bytes, Bytes granule) {
  return std::ceil(bytes / number(granule)) * number(granule);
}

// Standard normal, by Box and Muller.
double normal(RandomStream& random) {
  const double radius = std::sqrt(-2 * std::log(1 - uniform01(random)));
  return radius * std::cos(2 * std::numbers::pi * uniform01(random));
}

}  // namespace

SyntheticDevice::SyntheticDevice(const SyntheticTruth& truth, std::uint64_t seed, double noise)
    : truth_(truth), random_(random_stream(seed, "synthetic device")), noise_(noise) {}

Card SyntheticDevice::card() {
  return {.name = "NVIDIA H100 80GB HBM3",
          .sm_count = 132,
          .threads_per_sm = 2048,
          .compute_capability = "9.0",
          .total = truth_.total,
          .devices = 1,
          .mig = false,
          .driver = "synthetic",
          .cuda = "synthetic"};
}

CardUse SyntheticDevice::use() { return {truth_.total - truth_.context, 0, Bytes{0}}; }

std::vector<std::string> SyntheticDevice::left_out() { return {"peer: one GPU", "nccl: one GPU"}; }

double SyntheticDevice::noisy(double value) { return value * (1 + noise_ * normal(random_)); }

Values SyntheticDevice::measure(const std::string& probe, const Settings& settings) {
  constexpr double kEach = 0.2;  // seconds
  seconds_ += kEach;
  Values values = answer(probe, settings);
  for (auto& [name, value] : values) {
    if (name.ends_with("bytes")) {
      value = std::round(value);
    }
  }
  return values;
}

Values SyntheticDevice::answer(const std::string& probe, const Settings& settings) {
  const SyntheticTruth& truth = truth_;
  if (probe == "card") {
    return {{"total_bytes", number(truth.total)}};
  }
  if (probe == "context") {
    const double bytes =
        settings.at("eager") != 0
            ? number(truth.context_eager)
            : number(truth.context) + truth.context_kernel * at(settings, "kernels");
    return {{"bytes", noisy(bytes)}};
  }
  if (probe == "malloc") {
    return {{"bytes", granules(at(settings, "request"), truth.granule)}};
  }
  if (probe == "vmm") {
    return {{"granule_bytes", number(truth.granule)}};
  }
  if (probe == "pinned") {
    return {{"bytes", granules(at(settings, "registered") * truth.pinned_share, truth.granule)}};
  }
  if (probe == "cublas") {
    return {{"handle_bytes", noisy(number(truth.cublas_handle))},
            {"first_gemm_bytes", noisy(number(truth.cublas_first_gemm))}};
  }
  if (probe == "graph") {
    return {{"bytes", noisy(truth.graph_executable + truth.graph_node * at(settings, "nodes") +
                            truth.graph_copy * at(settings, "copies"))}};
  }
  if (probe == "graph_pool") {
    return {{"bytes", noisy(static_cast<double>(kGraphPoolBytes) +
                            truth.graph_pool_each * at(settings, "graphs"))}};
  }
  if (probe == "decode_attention") {
    return {{"bytes", at(settings, "token_splits") * kSplitBytes}};
  }
  if (probe == "prefill_attention") {
    return {{"bytes", at(settings, "tokens") * kPrefillSplits * kSplitBytes}};
  }
  if (probe == "permute") {
    return {{"bytes", at(settings, "rows") * kPermuteBytes}};
  }
  if (probe == "grouped_gemm") {
    return {{"bytes", at(settings, "rows") * kExpertRowBytes}};
  }
  if (probe == "quantise") {
    return {{"bytes", std::ceil(at(settings, "rows") / 128) * 128 * kQuantisedBytes}};
  }
  if (probe == "hbm") {
    return {{"seconds", noisy(truth.launch_seconds + at(settings, "bytes") / truth.hbm_bandwidth)}};
  }
  if (probe == "gemm") {
    const std::int64_t rows = settings.at("rows");
    if (rows == 1) {
      return {{"bytes_per_second", noisy(truth.gemm_bandwidth_1)}};
    }
    const double flops = rows == 256    ? truth.gemm_flops_256
                         : rows == 2048 ? truth.gemm_flops_2048
                                        : truth.gemm_flops_8192;
    return {{"flops_per_second", noisy(flops)}};
  }
  if (probe == "dispatch") {
    return {{"bytes", granules(at(settings, "tokens") * kDispatchBytes, truth.granule)},
            {"overlap", noisy(truth.dispatch_overlap)}};
  }
  if (probe == "transfer") {
    return {
        {"seconds", noisy(truth.launch_seconds + at(settings, "bytes") / truth.transfer_bandwidth)},
        {"overlap", noisy(truth.transfer_overlap)}};
  }
  throw Unsupported(probe + ": not made up");
}

}  // namespace oomcast::validation
