#include "sim/kernels/preset.hpp"

#include <fmt/format.h>

#include <cmath>

#include "models/data.hpp"
#include "sim/core/error.hpp"
#include "sim/core/json.hpp"

namespace oomcast::kernels {
namespace {

constexpr double kMost = 1e15;

ConfigError complaint(const PresetKey& key, const std::string& value, std::string expected) {
  return ConfigError(
      Problem{std::string{key.file}, std::string{key.name}, value, std::move(expected), ""});
}

bool is_for_gpu(const Json& row, const models::GpuSpec* gpu) {
  if (!row.contains("compute")) {
    return true;
  }
  if (gpu == nullptr || !row["compute"].is_string()) {
    return false;
  }
  const std::string compute = row["compute"].get<std::string>();
  return compute == std::to_string(gpu->compute_major) ||
         compute == fmt::format("{}.{}", gpu->compute_major, gpu->compute_minor);
}

// A later row wins; one for "10.3" stands behind the one for "10".
const Json* row_for(const Json& rows, const PresetKey& key) {
  const Json* found = nullptr;
  for (const Json& row : rows) {
    const auto since = row.is_object() && row.contains("since") && row["since"].is_string()
                           ? parse_version(row["since"].get<std::string>())
                           : std::nullopt;
    if (!since || !row.contains("value")) {
      throw complaint(key, row.dump().substr(0, 80), "rows with `since` and `value`");
    }
    if (is_for_gpu(row, key.gpu) && (*since <= key.version || found == nullptr)) {
      found = &row;
    }
  }
  return found;
}

std::optional<double> value_of(const PresetKey& key, std::string_view unit) {
  const Json& file = models::embedded_json(key.file);
  if (!file.is_object() || !file.contains("sizes") || !file["sizes"].contains(key.name)) {
    throw complaint(key, "", "an entry of this name in `sizes`");
  }
  const Json& entry = file["sizes"][std::string{key.name}];
  if (!entry.is_object() || entry.value("unit", Json()) != Json(unit) || !entry.contains("rows") ||
      !entry["rows"].is_array()) {
    throw complaint(key, "", fmt::format("`unit` {} and `rows`", unit));
  }
  const Json* row = row_for(entry["rows"], key);
  if (row == nullptr) {
    return std::nullopt;
  }
  Json value = row->at("value");
  if (value.is_object()) {
    value = value.value(std::to_string(key.ranks), Json());
  }
  if (value.is_null()) {
    return std::nullopt;
  }
  if (!value.is_number() || value.get<double>() < 0 || value.get<double>() > kMost) {
    throw complaint(key, value.dump().substr(0, 80), "a size from 0 up");
  }
  return value.get<double>();
}

}  // namespace

std::optional<Bytes> preset_bytes(const PresetKey& key) {
  const auto mib = value_of(key, "MiB");
  return mib ? std::optional(Bytes{std::llround(*mib * static_cast<double>(kMiB.count()))})
             : std::nullopt;
}

std::optional<std::int64_t> preset_count(const PresetKey& key) {
  const auto count = value_of(key, "count");
  return count ? std::optional(std::llround(*count)) : std::nullopt;
}

}  // namespace oomcast::kernels
