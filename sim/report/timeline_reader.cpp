#include "sim/report/timeline_reader.hpp"

#include <array>

#include "sim/core/error.hpp"
#include "sim/report/csv_columns.hpp"

namespace oomcast::report {
namespace {

// A rank has at most some 8,000 rows. Bounds what a damaged or foreign file may allocate.
constexpr std::int64_t kMostRows = 1'000'000;

enum Column : std::size_t {
  kTime,
  kRank,
  kKvUsed,
  kKvCached,
  kKvFree,
  kTorchAllocated,
  kTorchReserved,
  kDeviceUsed,
  kPinnedHost,
  kRunning,
  kWaiting,
  kStepTokens,
  kPreemptions,
  kFirstLeaf,
};

std::vector<std::string_view> column_names() {
  std::vector<std::string_view> names = {"time_s",
                                         "rank",
                                         "kv_used_bytes",
                                         "kv_cached_bytes",
                                         "kv_free_bytes",
                                         "torch_allocated_bytes",
                                         "torch_reserved_bytes",
                                         "device_used_bytes",
                                         "pinned_host_bytes",
                                         "running",
                                         "waiting",
                                         "step_tokens",
                                         "preemptions"};
  names.insert(names.end(), kLeafNames.begin(), kLeafNames.end());
  return names;
}

TimelineRow row_of(const CsvColumns& csv) {
  TimelineRow row;
  const auto at = csv.instant(kTime);
  if (!at) {
    csv.refuse(kTime, "", "seconds");
  }
  row.at = SimTime{Nanos{*at}};
  Bytes sum;
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    row.device[leaf] = Bytes{csv.count(kFirstLeaf + leaf)};
    sum += row.device[leaf];
  }
  row.kv_used = Bytes{csv.count(kKvUsed)};
  row.kv_cached = Bytes{csv.count(kKvCached)};
  row.kv_free = Bytes{csv.count(kKvFree)};
  row.views = {Bytes{csv.count(kTorchAllocated)}, Bytes{csv.count(kTorchReserved)},
               Bytes{csv.count(kDeviceUsed)}, Bytes{csv.count(kPinnedHost)}};
  row.running = csv.count(kRunning);
  row.waiting = csv.count(kWaiting);
  row.step_tokens = csv.count(kStepTokens);
  row.preemptions = csv.count(kPreemptions);
  if (sum != row.views.device_used) {
    csv.refuse(kDeviceUsed, csv.text(kDeviceUsed),
               fmt::format("the sum of the classes, {}", sum.count()));
  }
  return row;
}

// Rows lie rank by rank, so the last one's rank is nearly always the right one.
class RankFinder {
 public:
  explicit RankFinder(std::vector<FinishedRank>& ranks) : ranks_(&ranks), filled_(ranks.size()) {}

  FinishedRank* find(std::int64_t number) {
    for (std::size_t tries = 0; tries < ranks_->size(); ++tries) {
      if ((*ranks_)[last_].rank == number) {
        return &(*ranks_)[last_];
      }
      last_ = (last_ + 1) % ranks_->size();
    }
    return nullptr;
  }
  // How many phases of the startup the rank just found has by now.
  std::size_t& phases() { return filled_[last_]; }

 private:
  std::vector<FinishedRank>* ranks_;
  std::vector<std::size_t> filled_;
  std::size_t last_ = 0;
};

}  // namespace

void read_timeline(std::unique_ptr<workloads::LineReader> lines, std::vector<FinishedRank>& ranks) {
  const std::string source = lines->name();
  CsvColumns csv(std::move(lines), column_names());
  RankFinder finder(ranks);
  for (std::int64_t rows = 0; csv.next(); ++rows) {
    if (rows == kMostRows) {
      csv.refuse_row("more rows", fmt::format("at most {} rows", kMostRows));
    }
    const TimelineRow row = row_of(csv);
    FinishedRank* rank = finder.find(csv.count(kRank));
    if (rank == nullptr) {
      csv.refuse(kRank, csv.text(kRank), "a rank of record.json");
    }
    if (finder.phases() < rank->startup.size()) {
      rank->startup[finder.phases()++].at_end = row;
      continue;
    }
    if (!rank->timeline.empty() && row.at < rank->timeline.back().at) {
      csv.refuse(kTime, csv.text(kTime), "no earlier than the row before");
    }
    rank->timeline.push_back(row);
  }
  for (const FinishedRank& rank : ranks) {
    if (finder.find(rank.rank) == &rank && finder.phases() < rank.startup.size()) {
      throw ConfigError(Problem{
          source, "", fmt::format("{} rows", finder.phases()),
          fmt::format("{} phases of the startup of rank {}", rank.startup.size(), rank.rank),
          "is the file of the same run, and whole?"});
    }
  }
}

void take_timeline(std::vector<RankRecord> run, std::vector<FinishedRank>& ranks) {
  OOMCAST_CHECK(run.size() == ranks.size(), "{} ranks of {}", ranks.size(), run.size());
  for (std::size_t i = 0; i < run.size(); ++i) {
    RankRecord& from = run[i];
    FinishedRank& to = ranks[i];
    OOMCAST_CHECK(from.startup.size() == to.startup.size(), "{} phases of {}", to.startup.size(),
                  from.startup.size());
    for (std::size_t phase = 0; phase < from.startup.size(); ++phase) {
      TimelineRow& row = to.startup[phase].at_end;
      row.device = from.startup[phase].device;
      row.views = from.startup[phase].views;
      row.kv_free = row.device[index_of(Leaf::kKvPool)];
    }
    to.timeline = std::move(from.timeline);
    for (TimelineRow& row : to.timeline) {
      // Reports do not show them.
      row.torch.reset();
      row.transfer.reset();
      row.host_used.reset();
    }
  }
}

}  // namespace oomcast::report
