// From what the user types to a planned deployment: the way through up to the end of startup.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sim/core/json.hpp"
#include "sim/engines/deployment.hpp"
#include "sim/engines/rank_state.hpp"
#include "sim/engines/sglang/deployment.hpp"
#include "sim/engines/sglang/startup.hpp"
#include "sim/engines/trtllm/deployment.hpp"
#include "sim/engines/trtllm/startup.hpp"
#include "sim/engines/vllm/deployment.hpp"
#include "sim/engines/vllm/startup.hpp"
#include "sim/latency/step_time.hpp"

namespace oomcast {

struct DeploymentInput {
  std::string launch_line;     // the shell line itself
  std::string gpu;             // catalog name
  std::string engine_version;  // empty: from the line, else the newest known
  std::string model_config;    // path; empty: the catalog, by the model named in the line
  CardState card;
  std::vector<std::string> assume;  // NAME=VALUE
};

// A deployment of any engine that is modelled.
class AnyDeployment {
 public:
  using Engines = std::variant<vllm::Deployment, sglang::Deployment, trtllm::Deployment>;

  explicit AnyDeployment(Engines engine) : engine_(std::move(engine)) {}

  // What all engines have.
  [[nodiscard]] const EngineDeployment& common() const;
  [[nodiscard]] EngineDeployment& common();
  // As that of one engine; nullptr for another's.
  template <typename Deployment>
  [[nodiscard]] Deployment* as() {
    return std::get_if<Deployment>(&engine_);
  }
  [[nodiscard]] const Engines& engine() const { return engine_; }
  [[nodiscard]] Engines& engine() { return engine_; }

 private:
  Engines engine_;
};

// Throws ConfigError with everything that is wrong.
AnyDeployment resolve_input(const DeploymentInput& input);
// From the parts themselves, by the launch's engine. Throws ConfigError.
AnyDeployment resolve_for_engine(launch::Launch launch,
                                 std::shared_ptr<const models::ModelSpec> model,
                                 models::GpuSpec gpu, const CardState& card,
                                 const Assumed& assumed);
// The same card and model with another launch. Throws ConfigError.
AnyDeployment resolve_again(const EngineDeployment& deployment, launch::Launch launch);

// ... and on another card.
AnyDeployment resolve_again(const EngineDeployment& deployment, launch::Launch launch,
                            models::GpuSpec gpu);

// A deployment and its startup.
class Plan {
 public:
  template <typename Deployment, typename Startup>
  struct Started {
    Deployment deployment;
    Startup startup;
  };
  using Vllm = Started<vllm::Deployment, vllm::Startup>;
  using Sglang = Started<sglang::Deployment, sglang::Startup>;
  using Trtllm = Started<trtllm::Deployment, trtllm::Startup>;
  using Engines = std::variant<Vllm, Sglang, Trtllm>;

  explicit Plan(Engines engine) : engine_(std::move(engine)) {}

  [[nodiscard]] const EngineDeployment& deployment() const;
  [[nodiscard]] std::vector<const RankState*> ranks() const;
  [[nodiscard]] const EngineReport& report() const;
  [[nodiscard]] const Outcome& outcome() const;
  [[nodiscard]] Outcome& outcome();
  // As that of one engine (`Plan::Vllm`); nullptr for another's.
  template <typename Engine>
  [[nodiscard]] Engine* as() {
    return std::get_if<Engine>(&engine_);
  }
  template <typename Engine>
  [[nodiscard]] const Engine* as() const {
    return std::get_if<Engine>(&engine_);
  }
  [[nodiscard]] const Engines& engine() const { return engine_; }
  [[nodiscard]] Engines& engine() { return engine_; }

 private:
  Engines engine_;
};

// What startups of a search share (see vllm::StartupMemo; other engines' are simulated anew).
using StartMemo = vllm::StartupMemo;

// Startup alone. With a memo not for replays.
Plan start(AnyDeployment deployment, StartMemo* memo = nullptr);
// Startup of a deployment; with fixes tried out where it does not fit.
Plan make_plan(AnyDeployment deployment);

// `plan --json`, schema oomcast.plan/1.
OrderedJson plan_json(const Plan& plan);
// Every resolved value with its origin, for config.resolved.json and record.json.
OrderedJson config_json(const EngineDeployment& deployment);
OrderedJson outcome_json(const Outcome& outcome);

// Step times of the deployment's card, model and engine: the roofline.
std::unique_ptr<StepTimeModel> step_time_model(const AnyDeployment& deployment);
std::unique_ptr<StepTimeModel> step_time_model(const Plan& plan);

}  // namespace oomcast
