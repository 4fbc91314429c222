#include "sim/report/tables.hpp"

#include <fmt/format.h>

#include "sim/core/units_text.hpp"
#include "sim/ledger/classes.hpp"

namespace oomcast::report {
namespace {

std::string with_leaf_columns(std::string header) {
  for (const std::string_view name : kLeafNames) {
    header += ',';
    header += name;
  }
  return header + "\n";
}

void add_leaves(std::string& line, const LeafBytes& live) {
  for (const Bytes bytes : live) {
    line += fmt::format(",{}", bytes.count());
  }
  line += '\n';
}

void add_peak(std::string& out, std::int64_t rank, std::string_view of, const Peak& peak) {
  out += fmt::format("{},{},{},{},{}", rank, of, peak.bytes.count(),
                     format_seconds(peak.at.since_start()), peak.during);
  add_leaves(out, peak.live);
}

}  // namespace

std::string startup_csv(const FinishedRun& run) {
  std::string out = with_leaf_columns(
      "rank,phase,device_peak_bytes,device_used_bytes,torch_allocated_bytes,torch_reserved_bytes");
  for (const FinishedRank& rank : run.ranks) {
    for (const StartupPhase& phase : rank.startup) {
      const MemoryViews& views = phase.at_end.views;
      out += fmt::format("{},{},{},{},{},{}", rank.rank, phase.name, phase.device_peak.count(),
                         views.device_used.count(), views.torch_allocated.count(),
                         views.torch_reserved.count());
      add_leaves(out, phase.at_end.device);
    }
  }
  return out;
}

std::string peaks_csv(const FinishedRun& run) {
  std::string out = with_leaf_columns("rank,of,bytes,time_s,during");
  for (const FinishedRank& rank : run.ranks) {
    add_peak(out, rank.rank, "device", rank.device_peak);
    for (const auto& [leaf, peak] : rank.leaf_peaks) {
      add_peak(out, rank.rank, name_of(leaf), peak);
    }
  }
  return out;
}

}  // namespace oomcast::report
