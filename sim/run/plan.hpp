// From what the user types to a planned deployment: the way through up to the end of startup.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/startup.hpp"
#include "sim/latency/step_time.hpp"

namespace oomcast {

struct DeploymentInput {
  std::string launch_line;     // the shell line itself
  std::string gpu;             // catalog name
  std::string engine_version;  // empty: from the line, else the newest known
  std::string model_config;    // path; empty: the catalog, by the model named in the line
  vllm::CardState card;
  std::vector<std::string> assume;  // NAME=VALUE
};

// Throws ConfigError with everything that is wrong.
vllm::Deployment resolve_input(const DeploymentInput& input);

struct Plan {
  vllm::Deployment deployment;
  vllm::Startup startup;
};

// Startup of a deployment; with fixes tried out where it does not fit.
Plan make_plan(vllm::Deployment deployment);

// `plan --json`, schema oomcast.plan/1.
OrderedJson plan_json(const Plan& plan);
// Every resolved value with its origin, for config.resolved.json and record.json.
OrderedJson config_json(const vllm::Deployment& deployment);
OrderedJson outcome_json(const Outcome& outcome);

// Step times of the deployment's card, model and engine: the roofline.
std::unique_ptr<StepTimeModel> step_time_model(const vllm::Deployment& deployment);

}  // namespace oomcast
