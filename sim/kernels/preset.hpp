// Sizes that engines and libraries fix by constant, by version and GPU generation: the data files
// models/kernels/*.json. Each entry says its unit, each row from which version it holds, its source
// and, where it is not read in code of that version, its uncertainty.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/gpu.hpp"
#include "sim/core/units.hpp"
#include "sim/core/version.hpp"

namespace oomcast::kernels {

// What rows are chosen by. The last row whose `since` is not above the version and whose `compute`
// ("9" or "10.3", any if absent) is the GPU's holds; the first for older versions.
struct PresetKey {
  std::string_view file;  // "kernels/attention.json"
  std::string_view name;  // "vllm.flashinfer"
  Version version;
  const models::GpuSpec* gpu = nullptr;  // may be none where no row asks for it
  int ranks = 0;                         // rows may give one value a group size
};

// nullopt: no row holds (not for this GPU, this group size, or switched off), or its value is null.
// Throws ConfigError where the file is not as it should be, which a data folder of the user can
// cause, or has no such entry.
std::optional<Bytes> preset_bytes(const PresetKey& key);
std::optional<std::int64_t> preset_count(const PresetKey& key);

}  // namespace oomcast::kernels
