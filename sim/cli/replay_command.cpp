#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>

#include "sim/cli/cluster_options.hpp"
#include "sim/cli/progress.hpp"
#include "sim/cluster/cluster_json.hpp"
#include "sim/core/atomic_output.hpp"
#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"
#include "sim/report/brief.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/finished_run.hpp"
#include "sim/report/perfetto.hpp"
#include "sim/report/record_json.hpp"
#include "sim/report/report_page.hpp"
#include "sim/report/requests_reader.hpp"
#include "sim/report/snapshot.hpp"
#include "sim/report/text.hpp"
#include "sim/run/fixes.hpp"
#include "sim/run/replay.hpp"
#include "sim/run/serving_engine.hpp"
#include "sim/run/workload.hpp"

namespace oomcast::cli {
namespace {

using Clock = std::chrono::steady_clock;

po::options_description options() {
  po::options_description options = deployment_options();
  options.add(cluster_options());
  options.add(workload_options());
  po::options_description output("Output");
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  output.add_options()("step-by-step", po::bool_switch(), "no fast-forward (same results, slower)")(
      "detail", text("classes|allocator")->default_value("classes"),
      "classes, or allocator: every call of PyTorch's allocator, exact over time, with "
      "snapshot.pickle for its memory viewer")(
      "out", text("DIR"), "new folder for the results; default: results/<run-id>");
  add_brief(output);
  options.add(output);
  return options;
}

OrderedJson meta_json(Clock::time_point start) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  OrderedJson meta;
  meta["oomcast_version"] = OOMCAST_VERSION;
  meta["host"] = std::string(host.data());
  meta["date"] = utc_now("%Y-%m-%dT%H:%M:%SZ");
  meta["duration_s"] = std::chrono::duration<double>(Clock::now() - start).count();
  return meta;
}

// A pipe is read once.
bool can_restart(const workloads::WorkloadOptions& workload) {
  return std::find(workload.traces.begin(), workload.traces.end(), "-") == workload.traces.end();
}

// Of each rank whose allocator was followed; the first has the plain name.
void write_snapshots(const std::vector<RankRecord>& ranks, const OutputFolder& folder) {
  for (const RankRecord& rank : ranks) {
    if (rank.allocator) {
      const std::string name =
          rank.rank == 0 ? "snapshot.pickle" : fmt::format("snapshot-rank{}.pickle", rank.rank);
      write_snapshot(rank.allocator->history, rank.rank, folder.staged(name));
    }
  }
}

// As `oomcast report` reads it from the files, so that a report made later is the same.
void write_reports(const OutputFolder& folder, std::vector<RankRecord> ranks,
                   report::FinishedRequests requests) {
  const report::FinishedRun run =
      report::read_run(folder.staged("record.json"), std::move(ranks), std::move(requests));
  folder.write("report.html", report::report_page(run));
  CheckedFile trace(folder.staged("trace.pftrace"));
  report::write_perfetto(run, trace);
  trace.close();
}

// The file of requests, and what the reports show of it.
class Requests final : public RequestSink {
 public:
  explicit Requests(const std::string& path) : file_(path) {}
  void row(const RequestRow& row) override {
    file_.row(row);
    sample_.row(row);
  }
  void close() { file_.close(); }
  [[nodiscard]] report::FinishedRequests sample() const { return sample_.result(); }

 private:
  RequestsCsv file_;
  report::SampledRequests sample_;
};

Detail chosen_detail(const po::variables_map& values) {
  return values["detail"].as<std::string>() == "allocator" ? Detail::kAllocator : Detail::kClasses;
}

void refuse_what_is_not_there(const po::variables_map& values, const AnyDeployment& deployment) {
  Problems problems;
  check_replay(deployment, chosen_detail(values), problems);
  problems.raise_if_any();
}

// What a replay serves and writes, whoever serves it.
class Replay {
 public:
  Replay(const po::variables_map& values, Clock::time_point start)
      : values_(values),
        start_(start),
        workload_(workload_choices(values)),
        stream_(workloads::make_workload(workload_)) {
    options_.detail = chosen_detail(values);
    options_.step_by_step = values["step-by-step"].as<bool>();
  }

  // `serve` fills the record; may try changes out once the run is known.
  template <typename Serve>
  int run(const std::string& model, RunRecord& record, const Serve& serve) {
    options_.stop = stop_on_signals();
    const std::string path =
        values_.count("out") != 0 ? values_["out"].as<std::string>() : default_folder(model);
    OutputFolder folder(path);
    Requests requests(folder.staged("requests.csv"));
    {
      // A file was counted when it was opened; a generator or a pipe was not.
      const std::int64_t counted = stream_->summary().kept;
      Progress progress("requests", workload_.requests ? workload_.requests
                                    : counted > 0      ? std::optional<std::int64_t>(counted)
                                                       : std::nullopt);
      options_.progress = [&progress](std::int64_t done) { progress(done); };
      serve(*stream_, requests, options_, workload_);
    }
    requests.close();
    stop_no_more();
    record.workload = workload_json(workload_, stream_->summary());
    const bool fits = record.outcome.fits();
    write(std::move(record), requests.sample(), path, folder);
    return fits ? kFits : kDoesNotFit;
  }

 private:
  void write(RunRecord record, report::FinishedRequests requests, const std::string& path,
             OutputFolder& folder) {
    CheckedFile timeline(folder.staged("timeline.csv"));
    write_timeline_csv(record.ranks, timeline);
    timeline.close();
    write_snapshots(record.ranks, folder);
    const std::string json = record_json(record, meta_json(start_)).dump(2) + "\n";
    const std::string text = record_text(record);
    const std::string brief = record_brief(record);
    folder.write("record.json", json);
    folder.write("config.resolved.json", record.config.dump(2) + "\n");
    folder.write("summary.txt", text);
    write_reports(folder, std::move(record.ranks), std::move(requests));
    std::cout << chosen_output(values_, record.outcome.fits(), json, brief,
                               text + "Results in " + path + "\n")
              << std::flush;
    if (!std::cout) {
      throw ConfigError(Problem{"standard output", "", "", "a place that can be written", ""});
    }
    folder.commit();
  }

  const po::variables_map& values_;
  Clock::time_point start_;
  workloads::WorkloadOptions workload_;
  std::unique_ptr<workloads::RequestStream> stream_;
  ReplayOptions options_;
};

int run_engine(const po::variables_map& values) {
  const auto start = Clock::now();
  const DeploymentChoice choice = resolve_deployment(values);
  refuse_what_is_not_there(values, choice.deployment);
  Replay replay_of(values, start);
  const std::unique_ptr<StepTimeModel> step_times = step_times_of(choice);
  Plan plan = make_plan(choice.deployment);
  const EngineDeployment& deployment = choice.deployment.common();
  RunRecord record;
  record.config = config_json(deployment);
  record.plan = plan_json(plan);
  return replay_of.run(
      deployment.launch.model, record,
      [&](workloads::RequestStream& stream, RequestSink& requests, const ReplayOptions& options,
          const workloads::WorkloadOptions& workload) {
        replay(std::move(plan), *step_times, stream, requests, options, record);
        if (record.outcome.kind == OutcomeKind::kRuntimeOom && can_restart(workload)) {
          record.outcome.fixes = find_runtime_fixes(
              deployment, record, *step_times,
              [&workload] { return workloads::make_workload(workload); }, options);
          record.outcome_json = outcome_json(record.outcome);
        }
      });
}

int run_cluster(const po::variables_map& values) {
  const auto start = Clock::now();
  ClusterChoice choice = cluster_choice(values);
  Replay replay_of(values, start);
  const EngineDeployment& deployment = choice.setup.prefill.plan.deployment();
  const std::string model = deployment.launch.model;
  RunRecord record;
  record.config = config_json(deployment);
  record.config["decode"] = config_json(choice.setup.decode.plan.deployment());
  record.plan = cluster::cluster_plan_json(choice.setup);
  return replay_of.run(model, record,
                       [&](workloads::RequestStream& stream, RequestSink& requests,
                           const ReplayOptions& options, const workloads::WorkloadOptions&) {
                         cluster::replay_cluster(std::move(choice.setup), stream, requests, options,
                                                 record);
                       });
}

int run(const po::variables_map& values) {
  if (wants_cluster(values)) {
    return run_cluster(values);
  }
  refuse_cluster_options(values);
  return run_engine(values);
}

}  // namespace

Command replay_command() {
  return {.name = "replay",
          .purpose = "startup, then a request trace: timeline, peaks, outcome",
          .synopsis =
              "oomcast replay (--launch LINE | --prefill LINE --decode LINE) --gpu GPU "
              "(TRACE | --synthetic SPEC) [OPTION...]",
          .about =
              "Startup, then every request through the engine's scheduler; results in a new\n"
              "folder. A trace is a file, plain or packed, or - for standard input.",
          .examples = {{"A trace file",
                        "oomcast replay trace.csv.gz --launch \"vllm serve Qwen/Qwen3-8B\" "
                        "--gpu H100-80GB"},
                       {"A trace from a pipe",
                        "zcat trace.csv.gz | oomcast replay - --launch \"vllm serve "
                        "Qwen/Qwen3-8B\" --gpu H100-80GB"},
                       {"Generated requests",
                        "oomcast replay --launch \"vllm serve Qwen/Qwen3-8B\" --gpu L40S "
                        "--synthetic \"poisson:rate=5,requests=1000,input=lognormal(1024,0.8),"
                        "output=uniform(64,512)\""}},
          .options = options,
          .word = "trace",
          .most_words = 1,
          .run = run};
}

}  // namespace oomcast::cli
