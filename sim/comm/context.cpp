#include "sim/comm/context.hpp"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "models/data.hpp"
#include "sim/core/error.hpp"
#include "sim/core/json.hpp"

namespace oomcast::comm {
namespace {

constexpr const char* kFile = "kernels/context.json";

struct Range {
  Bytes value;
  Bytes low;
  Bytes high;
  std::string source;
};

std::optional<Bytes> mib(const JsonView& row, std::string_view key) {
  constexpr double kMost = 1e6;
  const auto value = row.number(key);
  if (!value || !(*value >= 0 && *value <= kMost)) {
    row.complain(key, "MiB from 0 to a million");
    return std::nullopt;
  }
  return Bytes{std::llround(*value * static_cast<double>(kMiB.count()))};
}

Range read_range(const JsonView& row) {
  return {mib(row, "mib").value_or(Bytes{0}), mib(row, "low_mib").value_or(Bytes{0}),
          mib(row, "high_mib").value_or(Bytes{0}), row.text("source").value_or("")};
}

// The file, and what is wrong with it.
struct File {
  const Json& json = models::embedded_json(kFile);
  Problems problems;

  // The object `key` of `section`, if there.
  [[nodiscard]] std::optional<JsonView> find(std::string_view section, std::string_view key) {
    const JsonView root(json, kFile, "", problems);
    const auto rows = root.object(section);
    return rows && rows->has(key) ? rows->object(key) : std::nullopt;
  }
};

Buffer context_buffer(std::string_view name, std::string formula, Bytes bytes) {
  return {name, std::move(formula), bytes, Lifetime::kPersistent, Backing::kContext};
}

ContextPart primary_context(File& file, const models::GpuSpec& gpu) {
  if (const auto row = file.find("measured", gpu.name)) {
    const Range range = read_range(*row);
    return {context_buffer("primary context", "measured", range.value), range.low, range.high,
            range.source};
  }
  // Two measured cards fix the formula; cards of other generations were seen within a quarter of
  // it.
  constexpr std::int64_t kQuarter = 4;
  const Bytes bytes = gpu.context_bytes;
  const Bytes off{bytes.count() / kQuarter};
  return {context_buffer("primary context", "8 MiB + SMs x threads x 1.94 KiB", bytes), bytes - off,
          bytes + off, "facts runtime 2.1, fitted to two measured cards"};
}

std::optional<ContextPart> driver_growth(File& file, int branch) {
  const JsonView root(file.json, kFile, "", file.problems);
  const Json* rows = root.find("driver_branches");
  if (branch <= 0 || rows == nullptr || !rows->is_array()) {
    return std::nullopt;
  }
  std::optional<ContextPart> found;
  for (const Json& row : *rows) {
    const JsonView view(row, kFile, "driver_branches", file.problems);
    if (view.integer("since", 0, 100'000).value_or(100'000) <= branch) {
      const Range range = read_range(view);
      found = ContextPart{
          context_buffer("driver branch", fmt::format("{} and newer", branch), range.value),
          range.low, range.high, range.source};
    }
  }
  return found;
}

}  // namespace

std::vector<ContextPart> context_parts(const models::GpuSpec& gpu, const ContextUse& use) {
  ShapeCheck{"CUDA context"}
      .between("driver branch", use.driver_branch, 0, 100'000)
      .between("stack bytes of a thread", use.stack_per_thread.count(), 0, std::int64_t{1} << 20)
      .raise_if_any();
  File file;
  std::vector<ContextPart> parts = {primary_context(file, gpu)};
  if (auto growth = driver_growth(file, use.driver_branch)) {
    parts.push_back(std::move(*growth));
  }
  for (const std::string& module : use.modules) {
    const auto row = file.find("modules", module);
    if (!row) {
      file.problems.add({"CUDA context", "modules", module, "a module of " + std::string{kFile},
                         did_you_mean(module, context_modules())});
      continue;
    }
    const Range range = read_range(*row);
    parts.push_back({context_buffer("loaded kernels", module, range.value), range.low, range.high,
                     range.source});
  }
  if (use.stack_per_thread > Bytes{0}) {
    const Bytes bytes = use.stack_per_thread * product(gpu.sm_count, gpu.threads_per_sm);
    parts.push_back({context_buffer("local memory", "SMs x threads x stack", bytes), bytes, bytes,
                     "facts runtime 2.1"});
  }
  file.problems.raise_if_any();
  return parts;
}

std::vector<std::string> context_modules() {
  const Json& file = models::embedded_json(kFile);
  std::vector<std::string> names;
  if (file.is_object() && file.contains("modules")) {
    for (const auto& [name, row] : file["modules"].items()) {
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace oomcast::comm
