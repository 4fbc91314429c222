// What a run leaves: immutable columns that writers only format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/core/units.hpp"
#include "sim/engines/outcome.hpp"
#include "sim/ledger/ledger.hpp"
#include "sim/run/allocator_record.hpp"
#include "sim/run/histogram.hpp"
#include "sim/run/timeline.hpp"

namespace oomcast {

enum class RequestOutcome : std::uint8_t {
  kFinished,
  kRejectedEmptyPrompt,
  kRejectedTooLong,
  kRejectedNoOutput,
  kNotAdmitted,  // still waiting when the run ended
  kInterrupted,  // running when the run ended
  kRejectedQueueFull,
  kAborted,  // its client gave up, or the engine, for want of memory
  kFailed,   // its server died, or its KV was lost on the way
};
std::string_view name_of(RequestOutcome outcome);

// One line of requests.csv. Instants that did not come are negative.
struct RequestRow {
  static constexpr SimTime kNever{Nanos{-1}};

  std::int64_t index = 0;  // order of arrival
  std::string id;          // as the trace names it; empty: the index
  SimTime arrival;
  SimTime first_scheduled = kNever;
  SimTime first_token = kNever;
  SimTime finish = kNever;
  Tokens input;
  Tokens output;
  Tokens cached;
  std::int64_t preemptions = 0;
  bool warm_up = false;  // not handed on, not counted
  RequestOutcome outcome = RequestOutcome::kNotAdmitted;
};

// Receives finished rows in order of arrival while the run goes on, so that a long trace needs no
// memory.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void row(const RequestRow& row) = 0;
};

// Ranks that behave alike are computed once; `rank` is the first of them.
struct RankRecord {
  int rank = 0;
  int alike = 1;     // how many ranks this one stands for
  std::string role;  // in a cluster: "prefill" or "decode"
  std::vector<PhaseRecord> startup;
  std::vector<TimelineRow> timeline;
  Peak device_peak;
  std::vector<Peak> leaf_peaks;  // kLeafCount of them
  Bytes device_total;
  std::optional<AllocatorRecord> allocator;  // at the allocator's depth
};

// KV copies in host memory, and their traffic with the cards; of all ranks together.
struct HostTierTotals {
  Bytes pool;
  Bytes used_peak;
  Tokens hit_tokens;  // loaded instead of computed
  std::int64_t loads = 0;
  std::int64_t stores = 0;
  Bytes loaded;        // over all host links
  Bytes stored;        // likewise; of stores that began
  Nanos loads_took;    // sum over loads, from their step's start to their end
  Nanos steps_waited;  // sum over steps that could not start before a copy ended
};

struct RunTotals {
  std::int64_t requests = 0;  // offered to the engine
  std::int64_t finished = 0;
  std::int64_t rejected = 0;
  std::int64_t aborted = 0;  // given up by their clients
  std::int64_t unfinished = 0;
  std::int64_t steps = 0;
  std::int64_t preemptions = 0;
  Tokens prompt_tokens;      // of finished requests
  Tokens output_tokens;      // of finished requests
  Tokens cached_tokens;      // prefix hits at first admission, of finished requests
  Tokens prefix_hit_tokens;  // of all admissions, those after a preemption included
  Nanos makespan;            // from the first arrival to the last finish
  Bytes kv_pool;
  Bytes kv_peak;  // most bytes of blocks held by requests
  SimTime kv_peak_at;
  std::optional<HostTierTotals> host_tier;
  LogHistogram ttft;     // ns, finished requests
  LogHistogram tpot;     // ns per output token after the first
  LogHistogram latency;  // ns
};

struct RunRecord {
  OrderedJson config;    // resolved deployment
  OrderedJson plan;      // `plan --json` of the startup
  OrderedJson cluster;   // servers, links and transfers; null for one engine alone
  OrderedJson workload;  // formats read, kept, dropped with reasons
  std::vector<RankRecord> ranks;
  RunTotals totals;
  Outcome outcome;
  OrderedJson outcome_json;  // the same, as `plan --json` writes it
  std::string digest;        // of every decision and byte above
};

}  // namespace oomcast
