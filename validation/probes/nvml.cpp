#include "validation/probes/nvml.hpp"

#include <dlfcn.h>

#include <array>
#include <vector>

namespace oomcast::validation {
namespace {

// As nvml.h lays them out; entries with a version in their name do not change.
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kTooSmall = 7;
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance;
  unsigned int compute_instance;
};
constexpr unsigned long long kNotKnown = ~0ULL;

}  // namespace

template <typename Function>
Function Nvml::find(const char* name) const {
  return reinterpret_cast<Function>(::dlsym(library_, name));
}

std::unique_ptr<Nvml> Nvml::open() {
  std::unique_ptr<Nvml> nvml(new Nvml);
  nvml->library_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml->library_ == nullptr) {
    return nullptr;
  }
  const auto init = nvml->find<Result (*)()>("nvmlInit_v2");
  return init != nullptr && init() == kSuccess ? std::move(nvml) : nullptr;
}

Nvml::~Nvml() {
  if (library_ != nullptr) {
    if (const auto shutdown = find<Result (*)()>("nvmlShutdown")) {
      shutdown();
    }
    ::dlclose(library_);
  }
}

std::string Nvml::driver_version() const {
  const auto version = find<Result (*)(char*, unsigned int)>("nvmlSystemGetDriverVersion");
  std::array<char, 96> text{};
  return version != nullptr && version(text.data(), text.size()) == kSuccess ? text.data() : "";
}

void* Nvml::device(const std::string& pci) const {
  const auto handle = find<Result (*)(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
  void* device = nullptr;
  return handle != nullptr && handle(pci.c_str(), &device) == kSuccess ? device : nullptr;
}

std::map<std::uint32_t, std::int64_t> Nvml::processes(const std::string& pci) const {
  const auto list = find<Result (*)(void*, unsigned int*, ProcessInfo*)>(
      "nvmlDeviceGetComputeRunningProcesses_v3");
  void* const card = device(pci);
  std::map<std::uint32_t, std::int64_t> out;
  if (list == nullptr || card == nullptr) {
    return out;
  }
  std::vector<ProcessInfo> found(64);
  auto count = static_cast<unsigned int>(found.size());
  Result result = list(card, &count, found.data());
  if (result == kTooSmall) {
    found.resize(count + 64);
    count = static_cast<unsigned int>(found.size());
    result = list(card, &count, found.data());
  }
  for (unsigned int i = 0; result == kSuccess && i < count; ++i) {
    out[found[i].pid] =
        found[i].used_bytes == kNotKnown ? 0 : static_cast<std::int64_t>(found[i].used_bytes);
  }
  return out;
}

bool Nvml::is_mig(const std::string& pci) const {
  const auto mode = find<Result (*)(void*, unsigned int*, unsigned int*)>("nvmlDeviceGetMigMode");
  void* const card = device(pci);
  unsigned int now = 0;
  unsigned int pending = 0;
  return mode != nullptr && card != nullptr && mode(card, &now, &pending) == kSuccess && now != 0;
}

}  // namespace oomcast::validation
