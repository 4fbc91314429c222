#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <iostream>

#include "sim/cli/command.hpp"
#include "sim/core/atomic_output.hpp"
#include "sim/core/error.hpp"
#include "sim/core/units_text.hpp"
#include "sim/report/brief.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/record_json.hpp"
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
  po::options_description replay("Workload and output");
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  const auto count = [] { return po::value<std::int64_t>()->value_name("N"); };
  replay.add_options()("trace",
                       po::value<std::vector<std::string>>()->composing()->value_name("FILE"),
                       "trace file, plain, .gz or .zst, or - (repeatable, merged by time)")(
      "trace-format", text("FORMAT")->default_value("", ""),
      "format of the traces; default: detected (see: oomcast list formats)")(
      "synthetic", text("SPEC")->default_value("", ""),
      "generated requests, e.g. "
      "poisson:rate=5,requests=1000,input=lognormal(1024,0.8),output=uniform(64,512)")(
      "requests", count(), "stop after this many requests")(
      "rate-scale", text("X")->default_value("", ""), "arrivals this many times as fast")(
      "closed-loop", count(), "this many clients, each waiting for its answer")(
      "step-by-step", po::bool_switch(), "no fast-forward (same results, slower)")(
      "detail", text("classes|allocator")->default_value("classes"),
      "classes, or allocator: every call of PyTorch's allocator, exact over time, with "
      "snapshot.pickle for its memory viewer")(
      "out", text("DIR"), "new folder for the results; default: results/<run-id>");
  add_brief(replay);
  options.add(replay);
  return options;
}

workloads::WorkloadOptions workload_options(const po::variables_map& values) {
  workloads::WorkloadOptions input;
  if (values.count("trace") != 0) {
    input.traces = values["trace"].as<std::vector<std::string>>();
  }
  input.trace_format = values["trace-format"].as<std::string>();
  input.synthetic = values["synthetic"].as<std::string>();
  if (values.count("requests") != 0) {
    input.requests = values["requests"].as<std::int64_t>();
  }
  input.rate_scale = values["rate-scale"].as<std::string>();
  if (values.count("closed-loop") != 0) {
    input.closed_loop = values["closed-loop"].as<std::int64_t>();
  }
  input.seed = values["seed"].as<std::uint64_t>();
  return input;
}

std::string utc_now(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), format, &parts);
  return std::string(text.data(), length);
}

// results/<date>-<model>, with a number behind it if that is taken.
std::string default_folder(const std::string& model) {
  std::string name;
  for (const char letter : model.substr(model.find_last_of('/') + 1)) {
    name += std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '.' ? letter : '-';
  }
  const std::string base = "results/" + utc_now("%Y%m%d-%H%M%S") + "-" + name.substr(0, 60);
  std::string path = base;
  std::error_code ignored;
  for (int i = 2; std::filesystem::exists(path, ignored); ++i) {
    path = fmt::format("{}-{}", base, i);
  }
  return path;
}

volatile std::sig_atomic_t stop_signal = 0;

// Ctrl-C and a polite kill leave nothing half-written: the run stops between two steps and the
// staged folder goes with it.
void stop_on_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    std::signal(signal, [](int number) { stop_signal = number; });
  }
}

// Requests so far, their rate, and the time left where the number of requests is known.
class Progress {
 public:
  explicit Progress(std::optional<std::int64_t> total)
      : total_(total), shown_(::isatty(STDERR_FILENO) != 0), start_(Clock::now()) {}
  ~Progress() {
    if (written_) {
      std::cerr << "\r\033[K";
    }
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void operator()(std::int64_t done) {
    const auto now = Clock::now();
    if (!shown_ || now - last_ < std::chrono::milliseconds(200)) {
      return;
    }
    last_ = now;
    written_ = true;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double rate = static_cast<double>(done) / std::max(seconds, 1e-9);
    std::string line = fmt::format("\r\033[K{} requests, {:.0f}/s", format_count(done), rate);
    if (total_ && rate > 0) {
      line += fmt::format(", {:.0f} s left", static_cast<double>(*total_ - done) / rate);
    }
    std::cerr << line << std::flush;
  }

 private:
  std::optional<std::int64_t> total_;
  bool shown_;
  bool written_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

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

Detail chosen_detail(const po::variables_map& values) {
  return values["detail"].as<std::string>() == "allocator" ? Detail::kAllocator : Detail::kClasses;
}

void refuse_what_is_not_there(const po::variables_map& values, const AnyDeployment& deployment) {
  Problems problems;
  check_replay(deployment, chosen_detail(values), problems);
  problems.raise_if_any();
}

int run(const po::variables_map& values) {
  const auto start = Clock::now();
  DeploymentChoice choice = resolve_deployment(values);
  refuse_what_is_not_there(values, choice.deployment);
  const workloads::WorkloadOptions workload = workload_options(values);
  const auto stream = workloads::make_workload(workload);
  const std::unique_ptr<StepTimeModel> step_times =
      choice.calibration && choice.calibration->step_time
          ? make_measured(*choice.calibration->step_time)
          : step_time_model(choice.deployment);
  Plan plan = make_plan(choice.deployment);
  const EngineDeployment& deployment = choice.deployment.common();

  stop_on_signals();
  const std::string path = values.count("out") != 0 ? values["out"].as<std::string>()
                                                    : default_folder(deployment.launch.model);
  OutputFolder folder(path);
  RunRecord record;
  record.config = config_json(deployment);
  record.plan = plan_json(plan);
  RequestsCsv requests(folder.staged("requests.csv"));
  {
    // A file was counted when it was opened; a generator or a pipe was not.
    const std::int64_t counted = stream->summary().kept;
    Progress progress(workload.requests ? workload.requests
                      : counted > 0     ? std::optional<std::int64_t>(counted)
                                        : std::nullopt);
    ReplayOptions options;
    options.detail = chosen_detail(values);
    options.step_by_step = values["step-by-step"].as<bool>();
    options.stop = &stop_signal;
    options.progress = [&progress](std::int64_t done) { progress(done); };
    replay(std::move(plan), *step_times, *stream, requests, options, record);
    if (record.outcome.kind == OutcomeKind::kRuntimeOom && can_restart(workload)) {
      record.outcome.fixes = find_runtime_fixes(
          deployment, record, *step_times,
          [&workload] { return workloads::make_workload(workload); }, options);
      record.outcome_json = outcome_json(record.outcome);
    }
  }
  requests.close();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    std::signal(signal, SIG_DFL);
  }
  record.workload = workload_json(workload, stream->summary());
  CheckedFile timeline(folder.staged("timeline.csv"));
  write_timeline_csv(record.ranks, timeline);
  timeline.close();
  write_snapshots(record.ranks, folder);
  const std::string json = record_json(record, meta_json(start)).dump(2) + "\n";
  const std::string text = record_text(record);
  folder.write("record.json", json);
  folder.write("config.resolved.json", record.config.dump(2) + "\n");
  folder.write("summary.txt", text);
  std::cout << chosen_output(values, record.outcome.fits(), json, record_brief(record),
                             text + "Results in " + path + "\n")
            << std::flush;
  if (!std::cout) {
    throw ConfigError(Problem{"standard output", "", "", "a place that can be written", ""});
  }
  folder.commit();
  return record.outcome.fits() ? kFits : kDoesNotFit;
}

}  // namespace

Command replay_command() {
  return {
      .name = "replay",
      .purpose = "startup, then a request trace: timeline, peaks, outcome",
      .synopsis = "oomcast replay --launch LINE --gpu GPU (TRACE | --synthetic SPEC) [OPTION...]",
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
