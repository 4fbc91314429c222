// The few questions asked of NVML. It is part of the driver, so it is looked for at run time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace oomcast::validation {

class Nvml {
 public:
  // nullptr where there is none.
  static std::unique_ptr<Nvml> open();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::string driver_version() const;
  // Processes with a context on the card at a PCI address ("00000000:65:00.0"), and the bytes each
  // holds (0 where NVML may not tell).
  std::map<std::uint32_t, std::int64_t> processes(const std::string& pci) const;
  // Whether the card is cut into parts.
  bool is_mig(const std::string& pci) const;

 private:
  Nvml() = default;
  template <typename Function>
  Function find(const char* name) const;
  void* device(const std::string& pci) const;

  void* library_ = nullptr;
};

}  // namespace oomcast::validation
