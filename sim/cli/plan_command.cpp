#include <iostream>
#include <utility>

#include "sim/cli/command.hpp"
#include "sim/core/atomic_output.hpp"
#include "sim/report/brief.hpp"
#include "sim/report/text.hpp"
#include "sim/run/explain_peak.hpp"
#include "sim/run/plan_changes.hpp"

namespace oomcast::cli {
namespace {

po::options_description options() {
  po::options_description options = deployment_options();
  options.add_options()("explain-peak", po::bool_switch(),
                        "the profile run's peak tensor by tensor, with formulas and live ranges")(
      "out", po::value<std::string>()->value_name("DIR"),
      "new folder for plan.json, config.resolved.json and summary.txt")(
      "compare", po::value<std::vector<std::string>>()->multitoken()->value_name("A [B]"),
      "two launch lines, @files or run folders, or one beside --launch: what differs and why "
      "(see: oomcast help compare)");
  add_brief(options);
  return options;
}

AnyDeployment without_calibration(po::variables_map values) {
  values.erase("calibration");
  return resolve_deployment(values).deployment;
}

int run(const po::variables_map& values) {
  if (values.count("compare") != 0) {
    return run_compare(values, values["compare"].as<std::vector<std::string>>());
  }
  DeploymentChoice choice = resolve_deployment(values);
  const Plan plan = make_plan(std::move(choice.deployment));
  OrderedJson json = plan_json(plan);
  std::string changes;
  if (choice.calibration) {
    json["calibration"] =
        plan_changes_json(start(without_calibration(values)), plan, choice.calibration->source);
    changes = "\n" + plan_changes_text(json["calibration"]);
  }
  if (values["explain-peak"].as<bool>()) {
    json["explain_peak"] = explain_peak_json(plan);
  }
  if (values.count("out") != 0) {
    OutputFolder folder(values["out"].as<std::string>());
    folder.write("plan.json", json.dump(2) + "\n");
    folder.write("config.resolved.json", config_json(plan.deployment()).dump(2) + "\n");
    folder.write("summary.txt", plan_text(json) + changes);
    folder.commit();
  }
  std::cout << chosen_output(values, plan.outcome().fits(), json.dump(2) + "\n", plan_brief(json),
                             plan_text(json) + changes);
  return plan.outcome().fits() ? kFits : kDoesNotFit;
}

}  // namespace

Command plan_command() {
  return {.name = "plan",
          .purpose = "startup of one deployment: classes, phases, KV capacity",
          .synopsis = "oomcast plan --launch LINE --gpu GPU [OPTION...]",
          .about =
              "Startup of one deployment: where every byte goes, and how many KV tokens are\n"
              "left.",
          .examples = {{"Two cards, tensor parallel",
                        "oomcast plan --launch \"vllm serve Qwen/Qwen3-8B -tp 2\" --gpu L40S"},
                       {"Flags as given, but less memory for the cache than the engine would take",
                        "oomcast plan --launch \"vllm serve Qwen/Qwen3-8B\" --gpu H100-80GB "
                        "--assume available_kv_gib=20"}},
          .options = options,
          .word = "",
          .run = run};
}

}  // namespace oomcast::cli
