#include "sim/report/perfetto.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <protozero/pbf_builder.hpp>
#include <string_view>

#include "sim/core/units_text.hpp"
#include "sim/ledger/classes.hpp"

namespace oomcast::report {
namespace {

// Field numbers of Perfetto's messages.
enum class Trace : protozero::pbf_tag_type { kPacket = 1 };
enum class Packet : protozero::pbf_tag_type {
  kTimestamp = 8,
  kSequenceId = 10,
  kTrackEvent = 11,
  kSequenceFlags = 13,
  kTrackDescriptor = 60,
};
enum class Track : protozero::pbf_tag_type {
  kUuid = 1,
  kName = 2,
  kProcess = 3,
  kParentUuid = 5,
  kCounter = 8,
  kChildOrdering = 11,
  kSiblingOrderRank = 12,
};
enum class Process : protozero::pbf_tag_type { kPid = 1, kName = 6 };
enum class Counter : protozero::pbf_tag_type { kUnit = 3 };
enum class Event : protozero::pbf_tag_type {
  kAnnotation = 4,
  kType = 9,
  kTrackUuid = 11,
  kCategories = 22,
  kName = 23,
  kCounterValue = 30,
};
enum class Annotation : protozero::pbf_tag_type { kString = 6, kName = 10 };

enum EventType { kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounterEvent = 4 };
enum CounterUnit { kUnitCount = 2, kUnitBytes = 3 };

constexpr std::uint32_t kSequence = 1;
constexpr int kSequenceStartsHere = 1;  // SEQ_INCREMENTAL_STATE_CLEARED
constexpr int kOrderedChildren = 3;     // ChildTracksOrdering EXPLICIT
constexpr std::uint64_t kTracksPerRank = 1'000;

using Builder = protozero::pbf_builder<Packet>;
using EventBuilder = protozero::pbf_builder<Event>;
using Notes = std::vector<std::pair<std::string, std::string>>;

class TraceFile {
 public:
  explicit TraceFile(CheckedFile& file) : file_(&file) {}

  void process(std::uint64_t uuid, std::int64_t pid, const std::string& name) {
    std::string process;
    protozero::pbf_builder<Process> fields(process);
    fields.add_int32(Process::kPid, static_cast<std::int32_t>(pid));
    fields.add_string(Process::kName, name);
    std::string track;
    protozero::pbf_builder<Track> descriptor(track);
    descriptor.add_uint64(Track::kUuid, uuid);
    descriptor.add_message(Track::kProcess, process);
    descriptor.add_enum(Track::kChildOrdering, kOrderedChildren);
    descriptor_packet(track);
  }

  // A track of slices and instants, or with a unit of samples.
  void track(std::uint64_t uuid, std::uint64_t parent, std::string_view name,
             std::optional<CounterUnit> unit) {
    std::string track;
    protozero::pbf_builder<Track> descriptor(track);
    descriptor.add_uint64(Track::kUuid, uuid);
    descriptor.add_string(Track::kName, std::string(name));
    descriptor.add_uint64(Track::kParentUuid, parent);
    descriptor.add_int32(Track::kSiblingOrderRank, static_cast<std::int32_t>(uuid - parent));
    if (unit) {
      std::string counter;
      protozero::pbf_builder<Counter>(counter).add_enum(Counter::kUnit, *unit);
      descriptor.add_message(Track::kCounter, counter);
    }
    descriptor_packet(track);
  }

  void sample(std::uint64_t track, Nanos at, std::int64_t value) {
    event(at, [&](EventBuilder& fields) {
      fields.add_enum(Event::kType, kCounterEvent);
      fields.add_uint64(Event::kTrackUuid, track);
      fields.add_int64(Event::kCounterValue, value);
    });
  }

  void slice(std::uint64_t track, Nanos begin, Nanos end, const std::string& name,
             const Notes& notes) {
    named(kSliceBegin, track, begin, name, notes);
    event(end, [&](EventBuilder& fields) {
      fields.add_enum(Event::kType, kSliceEnd);
      fields.add_uint64(Event::kTrackUuid, track);
    });
  }

  void instant(std::uint64_t track, Nanos at, const std::string& name, const Notes& notes) {
    named(kInstant, track, at, name, notes);
  }

 private:
  void named(EventType type, std::uint64_t track, Nanos at, const std::string& name,
             const Notes& notes) {
    event(at, [&](EventBuilder& fields) {
      fields.add_enum(Event::kType, type);
      fields.add_uint64(Event::kTrackUuid, track);
      fields.add_string(Event::kCategories, "oomcast");
      fields.add_string(Event::kName, name);
      for (const auto& [key, value] : notes) {
        protozero::pbf_builder<Annotation> annotation(fields, Event::kAnnotation);
        annotation.add_string(Annotation::kString, value);
        annotation.add_string(Annotation::kName, key);
      }
    });
  }

  template <typename Fill>
  void event(Nanos at, const Fill& fill) {
    packet([&](Builder& fields) {
      fields.add_uint64(Packet::kTimestamp, static_cast<std::uint64_t>(at.count()));
      fields.add_uint32(Packet::kSequenceId, kSequence);
      EventBuilder event(fields, Packet::kTrackEvent);
      fill(event);
    });
  }

  void descriptor_packet(const std::string& track) {
    packet([&](Builder& fields) {
      fields.add_uint32(Packet::kSequenceId, kSequence);
      if (first_) {
        fields.add_uint32(Packet::kSequenceFlags, kSequenceStartsHere);
        first_ = false;
      }
      fields.add_message(Packet::kTrackDescriptor, track);
    });
  }

  template <typename Fill>
  void packet(const Fill& fill) {
    packet_.clear();
    {
      protozero::pbf_builder<Trace> trace(packet_);
      Builder fields(trace, Trace::kPacket);
      fill(fields);
    }
    file_->append(packet_);
  }

  CheckedFile* file_;
  std::string packet_;
  bool first_ = true;
};

struct CounterColumn {
  std::string name;
  CounterUnit unit = kUnitBytes;
  std::function<std::int64_t(const TimelineRow&)> value;
};

std::vector<CounterColumn> counter_columns() {
  std::vector<CounterColumn> columns;
  const auto bytes = [&columns](std::string_view name, auto value) {
    columns.push_back({std::string(name), kUnitBytes, value});
  };
  const auto count = [&columns](std::string_view name, auto value) {
    columns.push_back({std::string(name), kUnitCount, value});
  };
  bytes("device used", [](const TimelineRow& row) { return row.views.device_used.count(); });
  bytes("torch reserved", [](const TimelineRow& row) { return row.views.torch_reserved.count(); });
  bytes("torch allocated",
        [](const TimelineRow& row) { return row.views.torch_allocated.count(); });
  bytes("pinned host", [](const TimelineRow& row) { return row.views.pinned_host.count(); });
  bytes("KV used", [](const TimelineRow& row) { return row.kv_used.count(); });
  bytes("KV cached", [](const TimelineRow& row) { return row.kv_cached.count(); });
  bytes("KV free", [](const TimelineRow& row) { return row.kv_free.count(); });
  count("running", [](const TimelineRow& row) { return row.running; });
  count("waiting", [](const TimelineRow& row) { return row.waiting; });
  count("step tokens", [](const TimelineRow& row) { return row.step_tokens; });
  count("preemptions", [](const TimelineRow& row) { return row.preemptions; });
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    bytes(kLeafNames[leaf], [leaf](const TimelineRow& row) { return row.device[leaf].count(); });
  }
  return columns;
}

// The rows of one rank on the clock of the trace: phases as they end, then the serving.
std::vector<std::pair<Nanos, const TimelineRow*>> rows_of(const FinishedRank& rank, Nanos serving) {
  std::vector<std::pair<Nanos, const TimelineRow*>> rows;
  Nanos at = serving - kSecond * std::ssize(rank.startup);
  for (const StartupPhase& phase : rank.startup) {
    at += kSecond;
    rows.emplace_back(at, &phase.at_end);
  }
  for (const TimelineRow& row : rank.timeline) {
    rows.emplace_back(serving + row.at.since_start(), &row);
  }
  return rows;
}

void write_counters(TraceFile& trace, const FinishedRank& rank, std::uint64_t process,
                    Nanos serving) {
  const auto rows = rows_of(rank, serving);
  std::uint64_t track = process + 2;
  for (const CounterColumn& column : counter_columns()) {
    const bool is_used = std::any_of(rows.begin(), rows.end(), [&column](const auto& entry) {
      return column.value(*entry.second) != 0;
    });
    if (!is_used) {
      continue;
    }
    trace.track(++track, process, column.name, column.unit);
    std::optional<std::int64_t> last;
    for (const auto& [at, row] : rows) {
      const std::int64_t value = column.value(*row);
      if (value != last) {
        trace.sample(track, at, value);
        last = value;
      }
    }
  }
}

Notes live_notes(const LeafBytes& live) {
  Notes notes;
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    if (live[leaf] > Bytes{0}) {
      notes.emplace_back(std::string(kLeafNames[leaf]), format_bytes(live[leaf]));
    }
  }
  return notes;
}

void write_phases(TraceFile& trace, const FinishedRank& rank, std::uint64_t track, Nanos serving) {
  Nanos at = serving - kSecond * std::ssize(rank.startup);
  for (const StartupPhase& phase : rank.startup) {
    Notes notes = {{"highest point", format_bytes(phase.device_peak)}};
    const Notes live = live_notes(phase.at_end.device);
    notes.insert(notes.end(), live.begin(), live.end());
    trace.slice(track, at, at + kSecond, phase.name, notes);
    at += kSecond;
  }
  if (!rank.timeline.empty()) {
    trace.slice(track, serving, serving + rank.timeline.back().at.since_start(), "serving", {});
  }
}

void write_instants(TraceFile& trace, const FinishedRun& run, const FinishedRank& rank,
                    std::uint64_t track, Nanos serving) {
  std::int64_t before = 0;
  for (const TimelineRow& row : rank.timeline) {
    if (row.preemptions > before) {
      const std::int64_t more = row.preemptions - before;
      trace.instant(track, serving + row.at.since_start(),
                    more == 1 ? "preemption" : fmt::format("{} preemptions", more), {});
      before = row.preemptions;
    }
  }
  const bool in_serving = rank.device_peak.during == "serving";
  trace.instant(track, in_serving ? serving + rank.device_peak.at.since_start() : serving,
                in_serving ? "peak of the card" : "peak of the card, in " + rank.device_peak.during,
                live_notes(rank.device_peak.live));
  const FinishedOutcome& outcome = run.outcome;
  const bool failed_here = !outcome.fits && outcome.rank.value_or(rank.rank) >= rank.rank &&
                           outcome.rank.value_or(rank.rank) - rank.rank < rank.alike;
  if (failed_here) {
    const Nanos end =
        rank.timeline.empty() ? serving : serving + rank.timeline.back().at.since_start();
    trace.instant(track, end, outcome.kind,
                  {{"phase", outcome.phase},
                   {"class", outcome.leaf},
                   {"short by", format_bytes(outcome.short_by)},
                   {"message", outcome.message}});
  }
}

}  // namespace

Nanos serving_start(const FinishedRun& run) {
  std::ptrdiff_t phases = 0;
  for (const FinishedRank& rank : run.ranks) {
    phases = std::max(phases, std::ssize(rank.startup));
  }
  return kSecond * phases;
}

void write_perfetto(const FinishedRun& run, CheckedFile& file) {
  TraceFile trace(file);
  const Nanos serving = serving_start(run);
  std::uint64_t process = kTracksPerRank;
  for (std::size_t i = 0; i < run.ranks.size(); ++i, process += kTracksPerRank) {
    const FinishedRank& rank = run.ranks[i];
    trace.process(process, static_cast<std::int64_t>(i) + 1,
                  fmt::format("rank {}{}{}", rank.rank, rank.role.empty() ? "" : " ", rank.role) +
                      (rank.alike > 1 ? fmt::format(" (stands for {} alike)", rank.alike) : ""));
    trace.track(process + 1, process, "startup (a second a phase) and serving", std::nullopt);
    trace.track(process + 2, process, "events", std::nullopt);
    write_phases(trace, rank, process + 1, serving);
    write_instants(trace, run, rank, process + 2, serving);
    write_counters(trace, rank, process, serving);
  }
}

}  // namespace oomcast::report
