#include "validation/probes/cuda_device.hpp"

#include <array>
#include <chrono>
#include <cstdio>

#include "validation/probes/cuda_support.cuh"
#include "validation/probes/nvml.hpp"
#include "validation/probes/probes.hpp"

namespace oomcast::validation {
namespace {

struct Probe {
  const char* name;
  Values (*measure)(const Settings&);
};
constexpr std::array<Probe, 19> kProbes = {{{"context", context_probe},
                                            {"cublas", cublas_probe},
                                            {"cublaslt", cublaslt_probe},
                                            {"malloc", malloc_probe},
                                            {"vmm", vmm_probe},
                                            {"pinned", pinned_probe},
                                            {"peer", peer_probe},
                                            {"graph", graph_probe},
                                            {"graph_pool", graph_pool_probe},
                                            {"decode_attention", decode_attention_probe},
                                            {"prefill_attention", prefill_attention_probe},
                                            {"permute", permute_probe},
                                            {"grouped_gemm", grouped_gemm_probe},
                                            {"quantise", quantise_probe},
                                            {"hbm", hbm_probe},
                                            {"gemm", gemm_probe},
                                            {"dispatch", dispatch_probe},
                                            {"transfer", transfer_probe},
                                            {"nccl", nccl_probe}}};

// 13000 -> "13.0"
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : nvml_(Nvml::open()) {
    check(cudaGetDeviceCount(&devices_), "CUDA");
    if (index < 0 || index >= devices_) {
      throw Unsupported("no card " + std::to_string(index) + " among " + std::to_string(devices_));
    }
    std::array<char, 32> pci{};
    check(cudaDeviceGetPCIBusId(pci.data(), static_cast<int>(pci.size()), index),
          "cudaDeviceGetPCIBusId");
    pci_ = pci.data();
    // Who is there before this process has a context is somebody else. Numbers of processes do not
    // tell: in a container they differ from those that NVML sees.
    const auto before = processes();
    check(cudaSetDevice(index), "cudaSetDevice");
    check(cudaFree(nullptr), "a context");
    own_ = processes();
    for (const auto& [process, bytes] : before) {
      own_.erase(process);
    }
    check(cudaGetDeviceProperties(&properties_, index), "cudaGetDeviceProperties");
  }

  Card card() override {
    int runtime = 0;
    int driver = 0;
    check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    const std::string driver_version = nvml_ ? nvml_->driver_version() : "";
    const std::string name = properties_.name;
    return {name,
            properties_.multiProcessorCount,
            properties_.maxThreadsPerMultiProcessor,
            std::to_string(properties_.major) + "." + std::to_string(properties_.minor),
            Bytes{total()},
            devices_,
            name.find("MIG") != std::string::npos || (nvml_ && nvml_->is_mig(pci_)),
            driver_version.empty() ? "for CUDA " + version_text(driver) : driver_version,
            version_text(runtime)};
  }

  CardUse use() override {
    CardUse out{Bytes{free_bytes()}, 0, Bytes{0}};
    for (const auto& [process, bytes] : processes()) {
      if (own_.find(process) == own_.end()) {
        ++out.other_processes;
        out.others_bytes += Bytes{bytes};
      }
    }
    return out;
  }

  Values measure(const std::string& name, const Settings& settings) override {
    if (name == "card") {
      return {{"total_bytes", static_cast<double>(total())}};
    }
    for (const Probe& probe : kProbes) {
      if (name == probe.name) {
        return probe.measure(settings);
      }
    }
    throw Unsupported("no probe " + name);
  }

  double seconds() override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  std::vector<std::string> left_out() override {
    std::vector<std::string> out;
#ifndef OOMCAST_HAS_CUBLAS
    out.push_back("gemm, cublas, cublaslt: cuBLAS was not found when this was built");
#endif
#ifndef OOMCAST_HAS_NCCL
    out.push_back("nccl: NCCL was not found when this was built");
#endif
    if (devices_ == 1) {
      out.push_back("peer, nccl: one GPU");
    }
    if (!nvml_) {
      out.push_back("other processes are not seen: no libnvidia-ml.so.1");
    }
    return out;
  }

 private:
  std::map<std::uint32_t, std::int64_t> processes() const {
    return nvml_ ? nvml_->processes(pci_) : std::map<std::uint32_t, std::int64_t>{};
  }
  static std::int64_t total() {
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<std::int64_t>(total);
  }

  std::unique_ptr<Nvml> nvml_;
  int devices_ = 0;
  std::string pci_;
  std::map<std::uint32_t, std::int64_t> own_;  // processes that NVML shows for this one
  cudaDeviceProp properties_{};
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int index) { return std::make_unique<CudaDevice>(index); }

}  // namespace oomcast::validation
