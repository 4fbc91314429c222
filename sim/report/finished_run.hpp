// A finished run as its files tell it: record.json, timeline.csv and requests.csv of one folder.
// What people look at (report.html, trace.pftrace) is made from this alone, so a report made later
// equals the one made at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/ledger/ledger.hpp"
#include "sim/run/record.hpp"
#include "sim/run/timeline.hpp"

namespace oomcast::report {

// Values of a settings tree by dotted path, as written: {"max_num_seqs", "1024"}.
using Settings = std::vector<std::pair<std::string, std::string>>;

struct LiveTensor {
  std::string name;
  std::string formula;
  std::string leaf;
  Bytes bytes;
};

struct StartupPhase {
  std::string name;
  Bytes device_peak;   // highest point within the phase
  TimelineRow at_end;  // as the phase ends
};

struct FinishedRank {
  std::int64_t rank = 0;
  std::int64_t alike = 1;  // how many ranks this one stands for
  std::string role;
  Bytes device_total;
  std::vector<StartupPhase> startup;
  std::vector<TimelineRow> timeline;  // of serving, in order of time
  Peak device_peak;
  std::vector<std::pair<Leaf, Peak>> leaf_peaks;
  std::string profile_moment;
  std::vector<LiveTensor> profile_peak;
};

struct SuggestedFix {
  std::string change;
  Bytes frees;
};

struct FinishedOutcome {
  bool fits = true;
  std::string kind;
  std::string phase;
  std::optional<std::int64_t> rank;
  std::string leaf;
  Bytes short_by;
  std::string message;
  std::vector<SuggestedFix> fixes;
  std::vector<LiveTensor> alive;  // at the allocator's depth: the tensors of the step that failed
};

// Seconds.
struct Percentiles {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};

struct FinishedTotals {
  std::int64_t requests = 0;
  std::int64_t finished = 0;
  std::int64_t rejected = 0;
  std::int64_t aborted = 0;
  std::int64_t unfinished = 0;
  std::int64_t steps = 0;
  std::int64_t preemptions = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t cached_tokens = 0;
  double makespan_s = 0;
  Bytes kv_pool;
  Bytes kv_peak;
  double kv_peak_s = 0;
  Percentiles ttft;
  Percentiles tpot;
  Percentiles latency;
};

// One line of requests.csv. Instants that never came are negative.
struct FinishedRequest {
  std::string id;
  std::int64_t arrival_ns = 0;
  std::int64_t first_scheduled_ns = -1;
  std::int64_t first_token_ns = -1;
  std::int64_t finish_ns = -1;
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t preemptions = 0;
  std::string outcome;

  // nullopt where the instants it needs never came; per token after the first, so of two or more.
  [[nodiscard]] std::optional<std::int64_t> ttft_ns() const;
  [[nodiscard]] std::optional<std::int64_t> tpot_ns() const;
  [[nodiscard]] std::optional<std::int64_t> latency_ns() const;

  friend bool operator==(const FinishedRequest&, const FinishedRequest&) = default;
};

// Quantiles 0, 1/100, ..., 1 in nanoseconds; empty where no request has the quantity.
using QuantileCurve = std::vector<std::int64_t>;

struct FinishedRequests {
  std::int64_t total = 0;
  // In order of arrival. All of them, or of a long trace a part: the slowest of each kind, those
  // most often preempted, the first that did not finish, and evenly spaced others.
  std::vector<FinishedRequest> kept;
  QuantileCurve ttft;
  QuantileCurve tpot;
  QuantileCurve latency;
};

struct FinishedRun {
  std::string model;
  std::string gpu;
  std::string engine;
  std::string engine_version;
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t dp = 1;
  std::int64_t ep = 1;
  Settings given;                     // flags of the launch line
  Settings resolved;                  // what the engine makes of them
  Settings engine_report;             // what the engine's own log would print
  std::vector<std::string> workload;  // a line a source
  std::vector<std::string> assumptions;
  std::vector<std::string> warnings;
  std::vector<std::string> notes;
  FinishedTotals totals;
  FinishedOutcome outcome;
  std::vector<FinishedRank> ranks;
  FinishedRequests requests;
  std::string digest;
  std::string program_version;
  std::string date;
};

// Reads the run in `path`: a folder that replay wrote, or its record.json. Throws ConfigError with
// file, line or key, value and what was expected for anything that is missing, damaged, or not of
// one run. Memory is bounded whatever the length of the files.
FinishedRun read_run(const std::string& path);
// The same where all but the record is at hand still.
FinishedRun read_run(const std::string& path, std::vector<RankRecord> ranks,
                     FinishedRequests requests);

// The same from text in memory.
struct RunTexts {
  std::string record;
  std::string timeline;
  std::string requests;
};
FinishedRun read_run(const RunTexts& texts);

}  // namespace oomcast::report
