#include "sim/report/report_page.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <utility>

#include "sim/ledger/classes.hpp"
#include "sim/report/html.hpp"
#include "sim/report/thin.hpp"

namespace oomcast::report {
namespace {

// Rows of all timelines together: a row takes some 100 bytes of the page.
constexpr std::size_t kMostRows = 40'000;
constexpr std::size_t kFewestRowsOfRank = 600;
constexpr std::size_t kMostShownRanks = kMostRows / kFewestRowsOfRank;

void append_number(std::string& out, std::int64_t number) {
  std::array<char, 24> digits{};
  out.append(digits.data(),
             std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
}

// What is long goes into the text of the page at once: as a tree its numbers would be made, walked
// through and taken down one by one. An object or a list that is open at the end of `out`.
class OpenText {
 public:
  OpenText(std::string& out, std::string_view brackets) : out_(out), closing_(brackets[1]) {
    out_ += brackets[0];
  }
  ~OpenText() { out_ += closing_; }
  OpenText(const OpenText&) = delete;
  OpenText& operator=(const OpenText&) = delete;

  // What is appended to the text next is an element, or a member of this name, which stands for
  // itself.
  std::string& next() {
    out_ += first_ ? "" : ",";
    first_ = false;
    return out_;
  }
  std::string& next(std::string_view name) {
    next() += '"';
    out_ += name;
    out_ += "\":";
    return out_;
  }
  void add(std::string_view name, const OrderedJson& value) { next(name) += data_text(value); }

 private:
  std::string& out_;
  char closing_;
  bool first_ = true;
};

constexpr std::string_view kObject = "{}";
constexpr std::string_view kList = "[]";

// A column as its first value and the differences between neighbours; as one number where it never
// changes. Differences are short, and many are 0.
template <typename Rows, typename ValueOf>
void append_column(std::string& out, const Rows& rows, const ValueOf& value_of) {
  if (!rows.empty()) {
    const std::int64_t first = value_of(rows.front());
    if (std::all_of(rows.begin(), rows.end(),
                    [&](const auto& row) { return value_of(row) == first; })) {
      return append_number(out, first);
    }
  }
  OpenText differences(out, kList);
  std::int64_t last = 0;
  for (const auto& row : rows) {
    const std::int64_t value = value_of(row);
    append_number(differences.next(), value - last);
    last = value;
  }
}

// A text of a file that anybody may have written, mostly a plain one.
void append_text(std::string& out, const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char letter) {
    return letter >= ' ' && letter <= '~' && letter != '"' && letter != '\\';
  });
  if (!plain) {
    out += data_text(text);
    return;
  }
  out += '"';
  out += text;
  out += '"';
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

void append_series(std::string& out, const std::vector<TimelineRow>& rows) {
  OpenText text(out, kObject);
  const auto add = [&](const char* name, const auto& value_of) {
    append_column(text.next(name), rows, value_of);
  };
  add("time_ns", [](const TimelineRow& row) { return row.at.since_start().count(); });
  {
    OpenText leaves(text.next("leaves"), kList);
    for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
      append_column(leaves.next(), rows,
                    [leaf](const TimelineRow& row) { return row.device[leaf].count(); });
    }
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
}

OrderedJson startup_json(const std::vector<StartupPhase>& phases) {
  OrderedJson json = OrderedJson::array();
  for (const StartupPhase& phase : phases) {
    const MemoryViews& views = phase.at_end.views;
    json.push_back({{"phase", phase.name},
                    {"peak", phase.device_peak.count()},
                    {"used", views.device_used.count()},
                    {"allocated", views.torch_allocated.count()},
                    {"reserved", views.torch_reserved.count()},
                    {"live", live_json(phase.at_end.device)}});
  }
  return json;
}

OrderedJson peaks_json(const FinishedRank& rank) {
  OrderedJson json = OrderedJson::array();
  json.push_back(peak_json("device", rank.device_peak));
  for (const auto& [leaf, peak] : rank.leaf_peaks) {
    json.push_back(peak_json(name_of(leaf), peak));
  }
  return json;
}

void append_rank(std::string& out, const FinishedRank& rank, std::size_t most_rows) {
  OpenText text(out, kObject);
  text.add("rank", rank.rank);
  text.add("alike", rank.alike);
  text.add("role", rank.role);
  text.add("total", rank.device_total.count());
  text.add("startup", startup_json(rank.startup));
  text.add("peaks", peaks_json(rank));
  text.add("profile",
           {{"moment", rank.profile_moment}, {"tensors", tensors_json(rank.profile_peak)}});
  std::vector<TimelineRow> fewer;
  if (rank.timeline.size() > most_rows) {
    fewer = thin(rank.timeline, most_rows);
  }
  const std::vector<TimelineRow>& rows = fewer.empty() ? rank.timeline : fewer;
  text.add("rows_read", rank.timeline.size());
  text.add("rows", rows.size());
  append_series(text.next("series"), rows);
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

void append_ranks(std::string& out, const FinishedRun& run, std::size_t most_rows) {
  const std::vector<const FinishedRank*> ranks = shown_ranks(run);
  OpenText text(out, kList);
  for (const FinishedRank* rank : ranks) {
    append_rank(text.next(), *rank, std::max(kFewestRowsOfRank, most_rows / ranks.size()));
  }
}

OrderedJson percentiles_json(const Percentiles& seconds) {
  return {seconds.mean, seconds.p50, seconds.p90, seconds.p99, seconds.max};
}

OrderedJson totals_json(const FinishedTotals& totals) {
  return {{"requests", totals.requests},
          {"finished", totals.finished},
          {"rejected", totals.rejected},
          {"aborted", totals.aborted},
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

void append_requests(std::string& out, const FinishedRequests& requests) {
  const std::vector<FinishedRequest>& kept = requests.kept;
  OpenText text(out, kObject);
  text.add("total", requests.total);
  text.add("rows", kept.size());
  const auto add_texts = [&](const char* name, std::string FinishedRequest::*of) {
    OpenText texts(text.next(name), kList);
    for (const FinishedRequest& request : kept) {
      append_text(texts.next(), request.*of);
    }
  };
  add_texts("ids", &FinishedRequest::id);
  add_texts("outcomes", &FinishedRequest::outcome);
  // Instants as spans since the arrival; -1 where they never came.
  const auto since_arrival = [](const FinishedRequest& request, std::int64_t at) {
    return at < 0 ? -1 : at - request.arrival_ns;
  };
  const auto add = [&](const char* name, const auto& value_of) {
    append_column(text.next(name), kept, value_of);
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
  text.add("quantiles",
           {{"ttft", requests.ttft}, {"tpot", requests.tpot}, {"latency", requests.latency}});
}

void append_run(std::string& out, const FinishedRun& run, std::size_t most_rows) {
  OpenText text(out, kObject);
  text.add("model", run.model);
  text.add("gpu", run.gpu);
  text.add("engine", run.engine);
  text.add("engine_version", run.engine_version);
  text.add("world", {{"tp", run.tp}, {"pp", run.pp}, {"dp", run.dp}, {"ep", run.ep}});
  text.add("given", settings_json(run.given));
  text.add("resolved", settings_json(run.resolved));
  text.add("engine_report", settings_json(run.engine_report));
  text.add("workload", run.workload);
  text.add("assumptions", run.assumptions);
  text.add("warnings", run.warnings);
  text.add("notes", run.notes);
  text.add("totals", totals_json(run.totals));
  text.add("outcome", outcome_json(run.outcome));
  text.add("all_ranks", run.ranks.size());
  append_ranks(text.next("ranks"), run, most_rows);
  append_requests(text.next("requests"), run.requests);
  text.add("digest", run.digest);
  text.add("program_version", run.program_version);
  text.add("date", run.date);
}

std::string pages_text(const std::vector<std::reference_wrapper<const FinishedRun>>& runs) {
  std::string out;
  {
    OpenText text(out, kObject);
    text.add("leaf_names", kLeafNames);
    OpenText list(text.next("runs"), kList);
    for (const FinishedRun& run : runs) {
      append_run(list.next(), run, kMostRows / runs.size());
    }
  }
  return out;
}

std::string title_of(const FinishedRun& run) {
  return (run.model.empty() ? "a run" : run.model) + (run.gpu.empty() ? "" : " on " + run.gpu);
}

}  // namespace

std::string report_page(const FinishedRun& run) {
  return page("oomcast: " + title_of(run), "report.html", "report.js", pages_text({run}));
}

std::string comparison_page(const FinishedRun& before, const FinishedRun& after) {
  return page("oomcast: " + title_of(before) + " compared with " + title_of(after), "compare.html",
              "compare.js", pages_text({before, after}));
}

}  // namespace oomcast::report
