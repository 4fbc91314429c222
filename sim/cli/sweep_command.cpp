#include <fmt/format.h>

#include <algorithm>
#include <boost/any.hpp>
#include <filesystem>
#include <iostream>
#include <set>
#include <thread>

#include "sim/cli/command.hpp"
#include "sim/cli/progress.hpp"
#include "sim/core/atomic_output.hpp"
#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"
#include "sim/core/json.hpp"
#include "sim/run/serving_engine.hpp"
#include "sim/search/journal.hpp"
#include "sim/search/sweep.hpp"
#include "sim/search/sweep_page.hpp"
#include "workloads/recorded.hpp"

namespace oomcast::cli {
namespace {

constexpr std::int64_t kMostJobs = 1024;

po::options_description options() {
  po::options_description options = deployment_options();
  options.add(workload_options());
  po::options_description sweep("Sweep");
  const auto texts = [](const char* name) {
    return po::value<std::vector<std::string>>()->composing()->value_name(name);
  };
  sweep.add_options()(
      "vary", texts("FLAG=VALUES"),
      "what varies (repeatable: every combination): FLAG=v1,v2, FLAG=FROM..TO+STEP, "
      "FLAG=FROM..TO*FACTOR; A/B=1/8,2/4 for flags that go together; also gpu, and with a workload "
      "rate-scale, prompt-scale, requests, closed-loop")(
      "where", texts("CONDITION"), "only points for which this holds, e.g. tp*pp<=8 (repeatable)")(
      "spec", po::value<std::string>()->value_name("FILE"),
      "JSON with \"vary\": [...] and \"where\": [...], as on the command line")(
      "cost-per-gpu-hour", po::value<double>()->value_name("X"),
      "judge points by cost instead of the number of cards")(
      "jobs", po::value<std::int64_t>()->value_name("N"), "threads; default: all cores")(
      "rows", po::value<std::int64_t>()->default_value(40)->value_name("N"),
      "rows of the table printed; points.csv has all")(
      "out", po::value<std::string>()->value_name("DIR"),
      "new folder for points.csv, sweep.json and sweep.html; default: results/<run-id>. A sweep "
      "that was killed goes on from DIR.partial");
  options.add(sweep);
  return options;
}

std::vector<std::string> texts_of(const po::variables_map& values, const char* name) {
  return values.count(name) != 0 ? values[name].as<std::vector<std::string>>()
                                 : std::vector<std::string>{};
}

struct SweepSpec {
  std::vector<std::string> vary;
  std::vector<std::string> where;
};

SweepSpec spec_of(const po::variables_map& values) {
  SweepSpec spec{texts_of(values, "vary"), texts_of(values, "where")};
  if (values.count("spec") == 0) {
    return spec;
  }
  const auto path = values["spec"].as<std::string>();
  const Json json = read_json_file(path);
  Problems problems;
  const JsonView view(json, path, "", problems);
  for (const auto& [key, value] : json.items()) {
    if (key != "vary" && key != "where") {
      view.complain(key, "vary or where");
    }
  }
  const auto append = [&view](const char* key, std::vector<std::string>& to) {
    const auto texts = view.texts(key).value_or(std::vector<std::string>{});
    to.insert(to.end(), texts.begin(), texts.end());
  };
  append("vary", spec.vary);
  append("where", spec.where);
  problems.raise_if_any();
  return spec;
}

search::Grid grid_of(const SweepSpec& spec, const launch::Launch& launch, bool has_workload) {
  Problems problems;
  std::vector<search::Axis> axes;
  for (const std::string& text : spec.vary) {
    axes.push_back(search::parse_axis(text, problems));
    for (const std::string& name : axes.back().names) {
      if (!has_workload && search::is_workload_knob(name)) {
        problems.add(
            {"command line", "--vary", name, "a workload (--trace or --synthetic) for it", ""});
      }
    }
  }
  problems.raise_if_any();
  return {launch, std::move(axes), spec.where};
}

// Everything that decides the results: what was typed, but for where it goes, and the age of files.
class SweepKey {
 public:
  explicit SweepKey(const po::variables_map& values) {
    static const std::set<std::string> kElsewhere = {"out", "jobs", "rows", "json"};
    for (const auto& [name, value] : values) {
      if (kElsewhere.count(name) == 0) {
        digest_.add(name + "=");
        add(value.value());
      }
    }
  }
  void add(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      digest_.add(text + "\n");
      add_age(text);
    }
  }
  [[nodiscard]] std::uint64_t value() const { return digest_.value(); }

 private:
  void add(const boost::any& value) {
    if (const auto* text = boost::any_cast<std::string>(&value)) {
      add(std::vector<std::string>{*text});
    } else if (const auto* texts = boost::any_cast<std::vector<std::string>>(&value)) {
      add(*texts);
    } else if (const auto* integer = boost::any_cast<std::int64_t>(&value)) {
      digest_.add(*integer);
    } else if (const auto* natural = boost::any_cast<std::uint64_t>(&value)) {
      digest_.add(*natural);
    } else if (const auto* number = boost::any_cast<double>(&value)) {
      digest_.add(fmt::format("{}", *number));
    }
  }
  void add_age(const std::string& path) {
    std::error_code error;
    const auto age = std::filesystem::last_write_time(path, error);
    if (!error) {
      digest_.add(static_cast<std::int64_t>(age.time_since_epoch().count()));
    }
  }

  Digest digest_;
};

int jobs_of(const po::variables_map& values) {
  if (values.count("jobs") == 0) {
    return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  }
  const auto jobs = values["jobs"].as<std::int64_t>();
  if (jobs < 1 || jobs > kMostJobs) {
    throw ConfigError(Problem{"command line", "--jobs", std::to_string(jobs),
                              fmt::format("1 to {}", kMostJobs), ""});
  }
  return static_cast<int>(jobs);
}

std::optional<double> cost_of(const po::variables_map& values) {
  if (values.count("cost-per-gpu-hour") == 0) {
    return std::nullopt;
  }
  const auto cost = values["cost-per-gpu-hour"].as<double>();
  if (!(cost >= 0) || cost > 1e9) {
    throw ConfigError(Problem{"command line", "--cost-per-gpu-hour", std::to_string(cost),
                              "a price of 0 or more", ""});
  }
  return cost;
}

// Points of a sweep into the journal and memory, with the share done on a terminal.
void run_points(const search::PointBase& base, search::Sweep& sweep, search::Journal& journal,
                search::Workers& workers) {
  for (const auto& [point, result] : journal.found()) {
    sweep.results[point] = result;
  }
  std::vector<std::size_t> todo = sweep.grid.order();
  std::erase_if(todo, [&](std::size_t point) { return journal.found().count(point) != 0; });
  Progress progress("points", static_cast<std::int64_t>(todo.size()));
  std::int64_t done = 0;
  workers.run(
      base, todo, [&](std::size_t point) { return sweep.grid.at(point); },
      [&](std::size_t point, const search::PointResult& result) {
        journal.append(point, result);
        sweep.results[point] = result;
        progress(++done);
      });
}

int run(const po::variables_map& values) {
  DeploymentChoice choice = resolve_deployment(values);
  const SweepSpec spec = spec_of(values);
  const int jobs = jobs_of(values);
  const workloads::WorkloadOptions workload = workload_choices(values);
  search::PointBase base{std::move(choice.deployment), std::move(choice.calibration), nullptr,
                         false, stop_on_signals()};
  const bool replays = !workload.traces.empty() || !workload.synthetic.empty();
  search::Sweep sweep{grid_of(spec, base.deployment.common().launch, replays),
                      replays,
                      cost_of(values),
                      {},
                      {},
                      {}};
  Problems problems;
  if (replays) {
    check_replay(base.deployment, Detail::kClasses, problems);
  } else {
    refuse_workload_changes(values, problems);
  }
  problems.raise_if_any();
  if (replays) {
    base.workload = std::make_shared<workloads::RecordedWorkload>(workload);
  }
  search::ThreadWorkers threads(jobs);
  search::Workers& workers = other_workers() != nullptr ? *other_workers() : threads;
  if (!workers.leads()) {
    workers.serve(base, [&](std::size_t point) { return sweep.grid.at(point); });
    return kFits;
  }
  const std::string path = values.count("out") != 0
                               ? values["out"].as<std::string>()
                               : default_folder(base.deployment.common().launch.model, "-sweep");
  OutputFolder folder(path);
  SweepKey key(values);
  key.add(spec.vary);
  key.add(spec.where);
  search::Journal journal(path, key.value(), sweep.grid.size());
  sweep.results.resize(sweep.grid.size());
  run_points(base, sweep, journal, workers);
  stop_no_more();
  sweep.judged_by = search::measures(replays, sweep.cost_per_gpu_hour);
  sweep.front = search::pareto_front(sweep.results, sweep.judged_by);

  const OrderedJson json = search::sweep_json(sweep);
  folder.write("points.csv", search::points_csv(sweep));
  folder.write("sweep.json",
               json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
  folder.write("sweep.html", search::sweep_page(sweep, base.deployment.common()));
  const auto rows =
      static_cast<std::size_t>(std::max<std::int64_t>(1, values["rows"].as<std::int64_t>()));
  std::cout << (values["json"].as<bool>()
                    ? json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n"
                    : search::sweep_text(sweep, rows) + "Results in " + path + "\n");
  folder.commit();
  journal.remove();
  const bool any_fits = std::any_of(sweep.results.begin(), sweep.results.end(),
                                    [](const auto& point) { return point.fits(); });
  return any_fits ? kFits : kDoesNotFit;
}

}  // namespace

Command sweep_command() {
  return {
      .name = "sweep",
      .purpose = "a grid of variations of a plan or a replay, and the best of them",
      .synopsis = "oomcast sweep --launch LINE --gpu GPU --vary FLAG=VALUES [OPTION...]",
      .about =
          "Starts a deployment once for each combination of settings, or with a workload\n"
          "replays it; points that do not fit stay in the table with their reason.",
      .examples = {{"Batch limits and share of the card",
                    "oomcast sweep --launch \"vllm serve Qwen/Qwen3-8B\" --gpu L40S "
                    "--vary max-num-seqs=64..512*2 --vary gpu-memory-utilization=0.8..0.95+0.05"},
                   {"Chunk sizes under a trace",
                    "oomcast sweep --launch \"vllm serve Qwen/Qwen3-8B\" --gpu L40S --trace "
                    "trace.csv --requests 1000 --vary max-num-batched-tokens=1024..8192*2"}},
      .options = options,
      .word = "",
      .most_words = 0,
      .run = run};
}

}  // namespace oomcast::cli
