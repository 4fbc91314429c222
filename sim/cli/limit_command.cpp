#include <algorithm>
#include <iostream>
#include <memory>

#include "sim/cli/command.hpp"
#include "sim/core/atomic_output.hpp"
#include "sim/core/error.hpp"
#include "sim/run/serving_engine.hpp"
#include "sim/search/grid.hpp"
#include "sim/search/limit.hpp"
#include "workloads/recorded.hpp"

namespace oomcast::cli {
namespace {

po::options_description options() {
  po::options_description options = deployment_options();
  options.add(workload_options());
  po::options_description limit("Limit");
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  limit.add_options()("find",
                      po::value<std::vector<std::string>>()->composing()->value_name("KNOB"),
                      "a flag with a number (max-num-seqs, max-num-batched-tokens, max-model-len, "
                      "gpu-memory-utilization ...), or of the load: request-rate, rate-scale, "
                      "prompt-scale, concurrency, requests, context-length (repeatable)")(
      "until", text("CRITERION")->default_value("oom"),
      "oom, preemption, kv_full, or a time and its bound: ttft>2s, tpot_p50>50ms, latency>30s")(
      "between", text("LOW:HIGH"),
      "where to look, LOW:HIGH or LOW:HIGH+STEP; default: by the knob")(
      "against", text("FLAG=VALUES"), "for each of these values, as behind sweep --vary")(
      "worst-case", po::bool_switch(),
      "instead of a workload: as many requests as run at once, all at time 0, each as long as the "
      "model takes")("margin", text("SIZE"),
                     "memory to leave free: the answer is safe if oomcast is off by this much")(
      "out", text("FILE"), "write the JSON there too");
  options.add(limit);
  return options;
}

std::vector<search::Axis> against(const po::variables_map& values, Problems& problems) {
  if (values.count("against") == 0) {
    return {};
  }
  return {search::parse_axis(values["against"].as<std::string>(), problems)};
}

search::PointBase base_of(const po::variables_map& values, const search::Criterion& criterion,
                          Problems& problems) {
  DeploymentChoice choice = resolve_deployment(values);
  if (const auto margin = bytes_option(values, "margin", problems)) {
    choice.deployment.common().card.other_use += *margin;
  }
  search::PointBase base{std::move(choice.deployment), std::move(choice.calibration), nullptr,
                         values["worst-case"].as<bool>(), stop_on_signals()};
  const workloads::WorkloadOptions workload = workload_choices(values);
  if (!workload.traces.empty() || !workload.synthetic.empty()) {
    if (base.worst_case) {
      problems.add({"command line", "--worst-case", "", "no --trace or --synthetic beside it", ""});
    }
    base.workload = std::make_shared<workloads::RecordedWorkload>(workload);
  } else {
    refuse_workload_changes(values, problems);
  }
  if (criterion.needs_workload() && !base.replays()) {
    problems.add({"command line", "--until", criterion.text(),
                  "a workload: --trace, --synthetic or --worst-case", ""});
  }
  if (base.replays()) {
    check_replay(base.deployment, Detail::kClasses, problems);
  }
  return base;
}

// The requests to answer: every knob at every place of the second axis.
std::vector<search::LimitRequest> requests_of(const po::variables_map& values,
                                              const search::PointBase& base, Problems& problems) {
  const launch::Launch& launch = base.deployment.common().launch;
  std::vector<search::LimitRequest> requests;
  if (values.count("find") == 0) {
    problems.add({"command line", "--find", "", "a knob", "e.g. --find max-num-seqs"});
    return requests;
  }
  const std::vector<search::Axis> second = against(values, problems);
  std::vector<search::Settings> places = {{}};
  if (!second.empty() && problems.empty()) {
    const search::Grid grid(launch, second, {});
    places.clear();
    for (std::size_t point = 0; point < grid.size(); ++point) {
      places.push_back(grid.at(point));
    }
  }
  for (const std::string& written : values["find"].as<std::vector<std::string>>()) {
    const std::string knob =
        search::canonical_knob(launch, written == "concurrency" ? search::kClientsKnob : written);
    if (search::is_workload_knob(knob) && !base.replays()) {
      problems.add({"command line", "--find", written, "a workload: --trace or --synthetic", ""});
      continue;
    }
    if (search::is_workload_knob(knob) && knob != search::kContextKnob && base.worst_case) {
      problems.add({"command line", "--find", written, "--trace or --synthetic with it",
                    "of the worst case only context-length can change"});
      continue;
    }
    if (knob == search::kContextKnob && !base.worst_case) {
      problems.add({"command line", "--find", written, "--worst-case with it", ""});
      continue;
    }
    std::optional<search::Range> range;
    if (values.count("between") != 0) {
      const bool fraction =
          launch.flags.count(knob) != 0 && launch.flags.find(knob)->second.value.is_number_float();
      range =
          search::parse_range(values["between"].as<std::string>(),
                              fraction ? search::Decimal{1, 2} : search::Decimal{1, 0}, problems);
    } else {
      range = search::usual_range(base, knob);
    }
    for (const search::Settings& place : places) {
      if (range) {
        requests.push_back({knob, *range, place});
      }
    }
  }
  return requests;
}

int run(const po::variables_map& values) {
  Problems problems;
  const search::Criterion criterion(values["until"].as<std::string>());
  const search::PointBase base = base_of(values, criterion, problems);
  const std::vector<search::LimitRequest> requests = requests_of(values, base, problems);
  problems.raise_if_any();
  std::vector<search::Limit> limits;
  limits.reserve(requests.size());
  for (const search::LimitRequest& request : requests) {
    limits.push_back(search::find_limit(base, criterion, request));
  }
  const OrderedJson json = search::limit_json(limits, criterion);
  const std::string text = json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  if (values.count("out") != 0) {
    write_file_atomically(values["out"].as<std::string>(), text);
  }
  std::cout << (values["json"].as<bool>() ? text : search::limit_text(json));
  const bool any_holds =
      std::any_of(json.at("limits").begin(), json.at("limits").end(),
                  [](const OrderedJson& limit) { return !limit.at("value").is_null(); });
  return any_holds ? kFits : kDoesNotFit;
}

}  // namespace

Command limit_command() {
  return {.name = "limit",
          .purpose = "the boundary: how far a knob or the load can go, and what breaks then",
          .synopsis = "oomcast limit --launch LINE --gpu GPU --find KNOB [OPTION...]",
          .about =
              "The largest value of a knob that holds and the next one, which does not, both\n"
              "simulated; what breaks there, and changes that move the edge.",
          .examples = {{"How many sequences before the server no longer starts",
                        "oomcast limit --launch \"vllm serve Qwen/Qwen3-8B\" --gpu L40S "
                        "--find max-num-seqs"},
                       {"How much load before requests are preempted",
                        "oomcast limit --launch \"vllm serve Qwen/Qwen3-8B\" --gpu L40S --trace "
                        "trace.csv --requests 1000 --find request-rate --until preemption"}},
          .options = options,
          .word = "",
          .most_words = 0,
          .run = run};
}

}  // namespace oomcast::cli
