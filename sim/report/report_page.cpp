#include "sim/report/report_page.hpp"

#include <algorithm>
#include <functional>

#include "sim/ledger/classes.hpp"
#include "sim/report/html.hpp"
#include "sim/report/thin.hpp"

namespace oomcast::report {
namespace {

// Rows of all timelines together: a row takes some 100 bytes of the page.
constexpr std::size_t kMostRows = 40'000;
constexpr std::size_t kFewestRowsOfRank = 600;
constexpr std::size_t kMostShownRanks = kMostRows / kFewestRowsOfRank;

// A column as its first value and the differences between neighbours; as one number where it never
// changes. Differences are short, and many are 0.
template <typename Rows, typename ValueOf>
OrderedJson column(const Rows& rows, const ValueOf& value_of) {
  if (!rows.empty()) {
    const std::int64_t first = value_of(rows.front());
    if (std::all_of(rows.begin(), rows.end(),
                    [&](const auto& row) { return value_of(row) == first; })) {
      return first;
    }
  }
  OrderedJson differences = OrderedJson::array();
  differences.get_ref<OrderedJson::array_t&>().reserve(rows.size());
  std::int64_t last = 0;
  for (const auto& row : rows) {
    const std::int64_t value = value_of(row);
    differences.push_back(value - last);
    last = value;
  }
  return differences;
}

OrderedJson settings_json(const Settings& settings) {
  OrderedJson json = OrderedJson::array();
  for (const auto& [name, value] : settings) {
    json.push_back({name, value});
  }
  return json;
}

OrderedJson live_json(const LeafBytes& live) {
  OrderedJson json = OrderedJson::array();
  for (const Bytes bytes : live) {
    json.push_back(bytes.count());
  }
  return json;
}

OrderedJson peak_json(std::string_view of, const Peak& peak) {
  return {{"of", of},
          {"bytes", peak.bytes.count()},
          {"time_s", peak.at.seconds()},
          {"during", peak.during},
          {"live", live_json(peak.live)}};
}

OrderedJson tensors_json(const std::vector<LiveTensor>& tensors) {
  OrderedJson json = OrderedJson::array();
  for (const LiveTensor& tensor : tensors) {
    json.push_back({{"name", tensor.name},
                    {"formula", tensor.formula},
                    {"class", tensor.leaf},
                    {"bytes", tensor.bytes.count()}});
  }
  return json;
}

OrderedJson series_json(const std::vector<TimelineRow>& rows) {
  OrderedJson json;
  const auto add = [&](const char* name, const auto& value_of) {
    json[name] = column(rows, value_of);
  };
  add("time_ns", [](const TimelineRow& row) { return row.at.since_start().count(); });
  json["leaves"] = OrderedJson::array();
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    json["leaves"].push_back(
        column(rows, [leaf](const TimelineRow& row) { return row.device[leaf].count(); }));
  }
  add("kv_used", [](const TimelineRow& row) { return row.kv_used.count(); });
  add("kv_cached", [](const TimelineRow& row) { return row.kv_cached.count(); });
  add("kv_free", [](const TimelineRow& row) { return row.kv_free.count(); });
  add("allocated", [](const TimelineRow& row) { return row.views.torch_allocated.count(); });
  add("reserved", [](const TimelineRow& row) { return row.views.torch_reserved.count(); });
  add("pinned", [](const TimelineRow& row) { return row.views.pinned_host.count(); });
  add("running", [](const TimelineRow& row) { return row.running; });
  add("waiting", [](const TimelineRow& row) { return row.waiting; });
  add("step_tokens", [](const TimelineRow& row) { return row.step_tokens; });
  add("preemptions", [](const TimelineRow& row) { return row.preemptions; });
  return json;
}

OrderedJson rank_json(const FinishedRank& rank, std::size_t most_rows) {
  OrderedJson json;
  json["rank"] = rank.rank;
  json["alike"] = rank.alike;
  json["role"] = rank.role;
  json["total"] = rank.device_total.count();
  json["startup"] = OrderedJson::array();
  for (const StartupPhase& phase : rank.startup) {
    const MemoryViews& views = phase.at_end.views;
    json["startup"].push_back({{"phase", phase.name},
                               {"peak", phase.device_peak.count()},
                               {"used", views.device_used.count()},
                               {"allocated", views.torch_allocated.count()},
                               {"reserved", views.torch_reserved.count()},
                               {"live", live_json(phase.at_end.device)}});
  }
  json["peaks"] = OrderedJson::array();
  json["peaks"].push_back(peak_json("device", rank.device_peak));
  for (const auto& [leaf, peak] : rank.leaf_peaks) {
    json["peaks"].push_back(peak_json(name_of(leaf), peak));
  }
  json["profile"] = {{"moment", rank.profile_moment}, {"tensors", tensors_json(rank.profile_peak)}};
  const std::vector<TimelineRow> rows = thin(rank.timeline, most_rows);
  json["rows_read"] = rank.timeline.size();
  json["rows"] = rows.size();
  json["series"] = series_json(rows);
  return json;
}

// All ranks, or of very many those with the highest peaks.
std::vector<const FinishedRank*> shown_ranks(const FinishedRun& run) {
  std::vector<const FinishedRank*> ranks;
  for (const FinishedRank& rank : run.ranks) {
    ranks.push_back(&rank);
  }
  if (ranks.size() > kMostShownRanks) {
    std::stable_sort(ranks.begin(), ranks.end(), [](const auto* left, const auto* right) {
      return left->device_peak.bytes > right->device_peak.bytes;
    });
    ranks.resize(kMostShownRanks);
    std::sort(ranks.begin(), ranks.end(),
              [](const auto* left, const auto* right) { return left->rank < right->rank; });
  }
  return ranks;
}

OrderedJson ranks_json(const FinishedRun& run, std::size_t most_rows) {
  const std::vector<const FinishedRank*> ranks = shown_ranks(run);
  OrderedJson json = OrderedJson::array();
  for (const FinishedRank* rank : ranks) {
    json.push_back(rank_json(*rank, std::max(kFewestRowsOfRank, most_rows / ranks.size())));
  }
  return json;
}

OrderedJson percentiles_json(const Percentiles& seconds) {
  return {seconds.mean, seconds.p50, seconds.p90, seconds.p99, seconds.max};
}

OrderedJson totals_json(const FinishedTotals& totals) {
  return {{"requests", totals.requests},
          {"finished", totals.finished},
          {"rejected", totals.rejected},
          {"unfinished", totals.unfinished},
          {"steps", totals.steps},
          {"preemptions", totals.preemptions},
          {"prompt_tokens", totals.prompt_tokens},
          {"output_tokens", totals.output_tokens},
          {"cached_tokens", totals.cached_tokens},
          {"makespan_s", totals.makespan_s},
          {"kv_pool", totals.kv_pool.count()},
          {"kv_peak", totals.kv_peak.count()},
          {"kv_peak_s", totals.kv_peak_s},
          {"ttft", percentiles_json(totals.ttft)},
          {"tpot", percentiles_json(totals.tpot)},
          {"latency", percentiles_json(totals.latency)}};
}

OrderedJson outcome_json(const FinishedOutcome& outcome) {
  OrderedJson json = {{"fits", outcome.fits},
                      {"kind", outcome.kind},
                      {"phase", outcome.phase},
                      {"rank", nullptr},
                      {"class", outcome.leaf},
                      {"short_by", outcome.short_by.count()},
                      {"message", outcome.message},
                      {"fixes", OrderedJson::array()},
                      {"alive", tensors_json(outcome.alive)}};
  if (outcome.rank) {
    json["rank"] = *outcome.rank;
  }
  for (const SuggestedFix& fix : outcome.fixes) {
    json["fixes"].push_back({{"change", fix.change}, {"frees", fix.frees.count()}});
  }
  return json;
}

OrderedJson requests_json(const FinishedRequests& requests) {
  OrderedJson json;
  const std::vector<FinishedRequest>& kept = requests.kept;
  json["total"] = requests.total;
  json["rows"] = kept.size();
  json["ids"] = OrderedJson::array();
  json["outcomes"] = OrderedJson::array();
  for (const FinishedRequest& request : kept) {
    json["ids"].push_back(request.id);
    json["outcomes"].push_back(request.outcome);
  }
  // Instants as spans since the arrival; -1 where they never came.
  const auto since_arrival = [](const FinishedRequest& request, std::int64_t at) {
    return at < 0 ? -1 : at - request.arrival_ns;
  };
  const auto add = [&](const char* name, const auto& value_of) {
    json[name] = column(kept, value_of);
  };
  add("arrival", [](const FinishedRequest& request) { return request.arrival_ns; });
  add("queued", [&](const FinishedRequest& request) {
    return since_arrival(request, request.first_scheduled_ns);
  });
  add("ttft", [](const FinishedRequest& request) { return request.ttft_ns().value_or(-1); });
  add("tpot", [](const FinishedRequest& request) { return request.tpot_ns().value_or(-1); });
  add("latency", [](const FinishedRequest& request) { return request.latency_ns().value_or(-1); });
  add("input", [](const FinishedRequest& request) { return request.input_tokens; });
  add("output", [](const FinishedRequest& request) { return request.output_tokens; });
  add("cached", [](const FinishedRequest& request) { return request.cached_tokens; });
  add("preemptions", [](const FinishedRequest& request) { return request.preemptions; });
  json["quantiles"] = {
      {"ttft", requests.ttft}, {"tpot", requests.tpot}, {"latency", requests.latency}};
  return json;
}

OrderedJson run_json(const FinishedRun& run, std::size_t most_rows) {
  OrderedJson json;
  json["model"] = run.model;
  json["gpu"] = run.gpu;
  json["engine"] = run.engine;
  json["engine_version"] = run.engine_version;
  json["world"] = {{"tp", run.tp}, {"pp", run.pp}, {"dp", run.dp}, {"ep", run.ep}};
  json["given"] = settings_json(run.given);
  json["resolved"] = settings_json(run.resolved);
  json["engine_report"] = settings_json(run.engine_report);
  json["workload"] = run.workload;
  json["assumptions"] = run.assumptions;
  json["warnings"] = run.warnings;
  json["notes"] = run.notes;
  json["totals"] = totals_json(run.totals);
  json["outcome"] = outcome_json(run.outcome);
  json["all_ranks"] = run.ranks.size();
  json["ranks"] = ranks_json(run, most_rows);
  json["requests"] = requests_json(run.requests);
  json["digest"] = run.digest;
  json["program_version"] = run.program_version;
  json["date"] = run.date;
  return json;
}

OrderedJson pages_json(const std::vector<std::reference_wrapper<const FinishedRun>>& runs) {
  OrderedJson json;
  json["leaf_names"] = kLeafNames;
  json["runs"] = OrderedJson::array();
  for (const FinishedRun& run : runs) {
    json["runs"].push_back(run_json(run, kMostRows / runs.size()));
  }
  return json;
}

std::string title_of(const FinishedRun& run) {
  return (run.model.empty() ? "a run" : run.model) + (run.gpu.empty() ? "" : " on " + run.gpu);
}

}  // namespace

std::string report_page(const FinishedRun& run) {
  return page("oomcast: " + title_of(run), "report.html", "report.js", pages_json({run}));
}

std::string comparison_page(const FinishedRun& before, const FinishedRun& after) {
  return page("oomcast: " + title_of(before) + " compared with " + title_of(after), "compare.html",
              "compare.js", pages_json({before, after}));
}

}  // namespace oomcast::report
