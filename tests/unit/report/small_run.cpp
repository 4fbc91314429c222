#include "tests/unit/report/small_run.hpp"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>

#include "sim/core/json.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/record_json.hpp"

namespace oomcast::report {
namespace {

SimTime at(std::int64_t nanos) { return SimTime{Nanos{nanos}}; }

// Weights of 400 and a pool of 300 once it stands; `runtime` on top.
TimelineRow row(std::int64_t nanos, std::int64_t runtime, std::int64_t kv_used,
                std::int64_t running) {
  TimelineRow out;
  out.at = at(nanos);
  out.device[index_of(Leaf::kModelWeights)] = Bytes{400};
  out.device[index_of(Leaf::kKvPool)] = Bytes{300};
  out.device[index_of(Leaf::kRuntimeLogits)] = Bytes{runtime};
  out.views = {Bytes{700 + runtime}, Bytes{720}, Bytes{700 + runtime}, Bytes{5}};
  out.kv_used = Bytes{kv_used};
  out.kv_free = Bytes{300 - kv_used};
  out.running = running;
  out.waiting = 2;
  out.step_tokens = 10 * running;
  return out;
}

PhaseRecord phase(std::string_view name, std::int64_t weights, std::int64_t pool,
                  std::int64_t peak) {
  PhaseRecord out;
  out.name = name;
  out.device[index_of(Leaf::kModelWeights)] = Bytes{weights};
  out.device[index_of(Leaf::kKvPool)] = Bytes{pool};
  out.views.device_used = Bytes{weights + pool};
  out.device_peak = Bytes{peak};
  return out;
}

RankRecord rank(int number, int alike) {
  RankRecord out;
  out.rank = number;
  out.alike = alike;
  out.device_total = Bytes{1000};
  out.startup = {phase("load", 400, 0, 450), phase("ready", 400, 300, 800)};
  out.timeline = {row(0, 10, 16, 1), row(1'500'000'001, 90, 48, 3), row(2'000'000'000, 20, 32, 2)};
  out.timeline.back().preemptions = 1;
  out.device_peak = {Bytes{800}, at(0), out.startup.back().device, "ready"};
  out.leaf_peaks.resize(kLeafCount);
  out.leaf_peaks[index_of(Leaf::kRuntimeLogits)] = {Bytes{90}, at(1'500'000'000),
                                                    out.timeline[1].device, "serving"};
  return out;
}

RequestRow request(std::int64_t index, std::string id, std::int64_t arrival, std::int64_t first,
                   std::int64_t finish) {
  RequestRow out;
  out.index = index;
  out.id = std::move(id);
  out.arrival = at(arrival);
  out.first_scheduled = at(arrival);
  out.first_token = at(first);
  out.finish = at(finish);
  out.input = Tokens{100};
  out.output = Tokens{11};
  out.outcome = RequestOutcome::kFinished;
  return out;
}

OrderedJson plan_of(const std::string& model) {
  OrderedJson plan = OrderedJson::parse(R"({
    "schema": "oomcast.plan/1", "engine": "vllm", "engine_version": "0.19.0", "gpu": "Card 1000",
    "world": {"tp": 3, "pp": 1, "dp": 1, "ep": 1}, "ranks": [],
    "engine_report": {"kv_tokens": 300, "weights_gib": 0.5, "swa_tokens": null},
    "assumptions": ["context_mib = 5 +-1 MiB: memory of the context [a log]"],
    "warnings": [], "notes": ["a note"]})");
  plan["model"] = model;
  for (const int number : {0, 1, 2}) {
    plan["ranks"].push_back({{"rank", number},
                             {"role", number == 0 ? "prefill" : "decode"},
                             {"phases",
                              {{{"phase", "load"}, {"device_peak_bytes", 450}},
                               {{"phase", "ready"}, {"device_peak_bytes", 800}}}},
                             {"profile_peak",
                              {{"moment", "sampler"},
                               {"tensors",
                                {{{"name", "logits"},
                                  {"formula", "R x V"},
                                  {"class", "runtime.logits"},
                                  {"bytes", 90}}}}}}});
  }
  return plan;
}

std::string written(const std::string& name, const std::function<void(const std::string&)>& write) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("oomcast-{}-{}", ::getpid(), name))
          .string();
  write(path);
  std::string text = read_text_file(path);
  std::remove(path.c_str());
  return text;
}

}  // namespace

SmallRun small_run(const std::string& model) {
  SmallRun run;
  RunRecord& record = run.record;
  record.config = OrderedJson::parse(R"({
    "launch": {"flags": {"max-num-seqs": {"value": 4, "origin": "given"},
                         "block-size": {"value": 16, "origin": "default"}},
               "environment": {"VLLM_USE_V1": "1"}},
    "resolved": {"max_num_seqs": 4, "sizes": [1, 2]}})");
  record.plan = plan_of(model);
  record.workload =
      OrderedJson::parse(R"([{"source": "a.csv", "format": "azure", "read": 4, "kept": 3}])");
  record.ranks = {rank(0, 1), rank(1, 2)};
  run.requests = {request(0, "", 0, 200, 1'200), request(1, "odd, \"id\"", 100, 400, 3'400),
                  request(2, "r", 150, 0, 0)};
  RequestRow& rejected = run.requests.back();
  rejected.first_scheduled = rejected.first_token = rejected.finish = RequestRow::kNever;
  rejected.outcome = RequestOutcome::kRejectedTooLong;
  RunTotals& totals = record.totals;
  totals.requests = 3;
  totals.finished = 2;
  totals.rejected = 1;
  totals.steps = 12;
  totals.kv_pool = Bytes{300};
  totals.kv_peak = Bytes{48};
  totals.kv_peak_at = at(1'500'000'000);
  record.outcome_json = OrderedJson::parse(R"({
    "fits": false, "kind": "runtime_oom", "phase": "serving", "rank": 1, "class": "runtime.logits",
    "short_by_bytes": 7, "message": "out of memory",
    "fixes": [{"change": "--max-num-seqs 2", "frees_bytes": 40}]})");
  record.digest = "abc";
  return run;
}

RunTexts texts_of(const SmallRun& run) {
  RunTexts texts;
  texts.record = record_json(run.record, {{"oomcast_version", "0.1.0"}}).dump();
  texts.timeline = written("timeline.csv", [&run](const std::string& path) {
    CheckedFile file(path);
    write_timeline_csv(run.record.ranks, file);
    file.close();
  });
  texts.requests = written("requests.csv", [&run](const std::string& path) {
    RequestsCsv file(path);
    for (const RequestRow& row : run.requests) {
      file.row(row);
    }
    file.close();
  });
  return texts;
}

}  // namespace oomcast::report
