#include "sim/report/snapshot.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "sim/engines/startup_tag.hpp"
#include "sim/report/memory_viz.hpp"

namespace oomcast {
namespace {

std::vector<VizFrame> frames_of(const MemoryHistory& history, std::uint32_t tag) {
  if (tag == 0) {
    return {};
  }
  if (tag < kFirstStepTag) {
    return {{std::string(name_of(startup_leaf(tag))), "startup", 0},
            {std::string(startup_phase(tag)), "startup", 0}};
  }
  const auto after = std::upper_bound(
      history.steps.begin(), history.steps.end(), tag,
      [](std::uint32_t value, const MemoryHistory::Step& step) { return value < step.first_tag; });
  const MemoryHistory::Step& step = *(after - 1);
  const AllocationSite& site = history.sites[step.way][tag - step.first_tag];
  return {{fmt::format("{} ({})", site.tensor, site.formula), std::string(name_of(site.leaf)), 0},
          {site.op, site.scope, 0},
          {fmt::format("step of {} tokens x {} rows", step.tokens.count(), step.rows),
           fmt::format("{:.6f} s", step.at.seconds()), 0}};
}

}  // namespace

void write_snapshot(const MemoryHistory& history, int rank, const std::string& path) {
  MemoryVizFile file(path, rank, [&history](std::uint32_t tag) { return frames_of(history, tag); });
  constexpr std::int64_t kNanosPerMicro = 1000;
  for (const MemoryHistory::Event& event : history.events) {
    file.add(event.event, event.at.since_start().count() / kNanosPerMicro);
  }
  file.finish(history.segments, history.settings);
}

}  // namespace oomcast
