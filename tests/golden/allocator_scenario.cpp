#include "tests/golden/allocator_scenario.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <type_traits>

#include "sim/core/error.hpp"

namespace oomcast::golden {
namespace {

using allocator::AllocatorStats;
using allocator::CachingAllocator;

constexpr std::int64_t kMaxNumber = std::numeric_limits<std::int64_t>::max();

template <auto Member>
std::int64_t stat(const CachingAllocator& allocator) {
  const auto value = allocator.stats().*Member;
  if constexpr (std::is_same_v<decltype(value), const Bytes>) {
    return value.count();
  } else {
    return value;
  }
}

constexpr std::array kStats = {
    StatName{"allocated", stat<&AllocatorStats::allocated>},
    StatName{"reserved", stat<&AllocatorStats::reserved>},
    StatName{"active", stat<&AllocatorStats::active>},
    StatName{"requested", stat<&AllocatorStats::requested>},
    StatName{"inactive_split", stat<&AllocatorStats::inactive_split>},
    StatName{"allocations", stat<&AllocatorStats::allocations>},
    StatName{"segments", stat<&AllocatorStats::segments>},
    StatName{"active_blocks", stat<&AllocatorStats::active_blocks>},
    StatName{"inactive_split_blocks", stat<&AllocatorStats::inactive_split_blocks>},
    StatName{"small_allocated", stat<&AllocatorStats::small_allocated>},
    StatName{"small_reserved", stat<&AllocatorStats::small_reserved>},
    StatName{"small_active", stat<&AllocatorStats::small_active>},
    StatName{"small_inactive_split", stat<&AllocatorStats::small_inactive_split>},
    StatName{"allocated_peak", stat<&AllocatorStats::allocated_peak>},
    StatName{"reserved_peak", stat<&AllocatorStats::reserved_peak>},
    StatName{"active_peak", stat<&AllocatorStats::active_peak>},
    StatName{"requested_peak", stat<&AllocatorStats::requested_peak>},
    StatName{"alloc_retries", stat<&AllocatorStats::alloc_retries>},
    StatName{"ooms", stat<&AllocatorStats::ooms>},
    StatName{"sync_all_streams", stat<&AllocatorStats::sync_all_streams>},
    StatName{"device_allocs", stat<&AllocatorStats::device_allocs>},
    StatName{"device_frees", stat<&AllocatorStats::device_frees>},
    StatName{"oversize_allocations", stat<&AllocatorStats::oversize_allocations>},
    StatName{"oversize_segments", stat<&AllocatorStats::oversize_segments>},
    StatName{"oom_rejections", stat<&AllocatorStats::oom_rejections>},
    StatName{"driver_used",
             [](const CachingAllocator& allocator) { return allocator.device().used().count(); }}};

}  // namespace

AllocatorScenario read_allocator_scenario(const Json& header, const std::string& file) {
  Problems problems;
  const JsonView view(header, file, "", problems);
  problems.raise_if_any();
  AllocatorScenario scenario;
  if (!view.text("scenario")) {
    view.complain("scenario", "a recording's first line");
  }
  scenario.device.total = Bytes{view.integer("device_total", 1, kMaxNumber).value_or(0)};
  scenario.device.base_used = Bytes{view.integer("base_used", 0, kMaxNumber).value_or(0)};
  if (!view.has("device_total") || !view.has("base_used")) {
    view.complain("device_total", "device_total and base_used");
  }
  const std::string addresses = view.text("addresses").value_or("");
  if (addresses == "ascending") {
    scenario.device.addresses = allocator::AddressPolicy::kAscending;
  } else if (addresses == "descending") {
    scenario.device.addresses = allocator::AddressPolicy::kDescending;
  } else if (addresses != "first_fit") {
    view.complain("addresses", "ascending, descending or first_fit");
  }
  std::vector<std::string> names;
  for (const StatName& known : kStats) {
    names.emplace_back(known.name);
  }
  const std::optional<std::vector<std::string>> stats = view.texts("stats");
  if (!stats) {
    view.complain("stats", "names of statistics");
  }
  for (const std::string& name : stats.value_or(std::vector<std::string>{})) {
    const auto known = std::find(names.begin(), names.end(), name);
    if (known == names.end()) {
      problems.add({file, "stats", name, "a known statistic", did_you_mean(name, names)});
      continue;
    }
    scenario.stats.push_back(&kStats[static_cast<std::size_t>(known - names.begin())]);
  }
  std::vector<std::string> warnings;
  scenario.settings = allocator::parse_allocator_settings(view.text("conf").value_or(""),
                                                          file + ": conf", problems, warnings);
  problems.raise_if_any();
  return scenario;
}

}  // namespace oomcast::golden
