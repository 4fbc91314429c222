#include "sim/run/plan.hpp"

#include "models/catalog.hpp"
#include "models/config_reader.hpp"
#include "models/gpu.hpp"
#include "sim/core/error.hpp"
#include "sim/run/fixes.hpp"

namespace oomcast {
namespace {

// What the line changes in the model's config.
Json config_changes(const launch::Launch& launch) {
  Json changes = Json::object();
  const auto take = [&](const char* flag) {
    if (const Json* given = launch.json(flag); given != nullptr && given->is_object()) {
      changes.update(*given);
    }
  };
  if (launch.engine == launch::Engine::kSglang) {
    take("json-model-override-args");
  }
  if (launch.engine != launch::Engine::kVllm) {
    return changes;
  }
  take("hf-overrides");
  // Before 0.11.1, joined to the overrides.
  if (const Json* scaling = launch.json("rope-scaling"); scaling != nullptr && !scaling->empty()) {
    changes["rope_scaling"] = *scaling;
  }
  if (const auto base = launch.number("rope-theta")) {
    changes["rope_theta"] = *base;
  }
  return changes;
}

std::shared_ptr<const models::ModelSpec> find_model(const DeploymentInput& input,
                                                    const launch::Launch& launch) {
  const Json changes = config_changes(launch);
  return std::make_shared<models::ModelSpec>(
      input.model_config.empty() ? models::catalog_model(launch.model, changes)
                                 : models::read_model_config(input.model_config, changes));
}

// Runs `read`; what it complains about joins the other problems.
template <typename Read>
auto gathered(Problems& problems, Read read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const ConfigError& error) {
    problems.take(error);
    return std::nullopt;
  }
}

// Without ranks that exchange tokens every one has all of them, however they choose.
void warn_of_unused_routing(EngineDeployment& deployment) {
  if (deployment.assumed.routing.kind != experts::Routing::Kind::kUniform &&
      deployment.exchange.kind == Exchange::kNone) {
    deployment.warnings.emplace_back(
        "expert_routing changes nothing here: no ranks exchange tokens with experts");
  }
}

}  // namespace

AnyDeployment resolve_input(const DeploymentInput& input) {
  Problems problems;
  auto launch = gathered(problems, [&] {
    launch::LaunchOptions options;
    options.engine_version = input.engine_version;
    return launch::parse_launch(input.launch_line, options);
  });
  auto gpu = gathered(problems, [&] { return models::find_gpu(input.gpu); });
  const auto assumed = gathered(problems, [&] { return Assumed::parse(input.assume); });
  std::optional<std::shared_ptr<const models::ModelSpec>> model;
  if (launch) {
    model = gathered(problems, [&] { return find_model(input, *launch); });
  }
  problems.raise_if_any();
  AnyDeployment deployment = resolve_for_engine(std::move(*launch), std::move(*model),
                                                std::move(*gpu), input.card, *assumed);
  warn_of_unused_routing(deployment.common());
  return deployment;
}

AnyDeployment resolve_for_engine(launch::Launch launch,
                                 std::shared_ptr<const models::ModelSpec> model,
                                 models::GpuSpec gpu, const CardState& card,
                                 const Assumed& assumed) {
  switch (launch.engine) {
    case launch::Engine::kSglang:
      return AnyDeployment(
          sglang::resolve(std::move(launch), std::move(model), std::move(gpu), card, assumed));
    case launch::Engine::kTrtllm:
      return AnyDeployment(
          trtllm::resolve(std::move(launch), std::move(model), std::move(gpu), card, assumed));
    case launch::Engine::kVllm:
      break;
  }
  return AnyDeployment(
      vllm::resolve(std::move(launch), std::move(model), std::move(gpu), card, assumed));
}

AnyDeployment resolve_again(const EngineDeployment& deployment, launch::Launch launch) {
  return resolve_again(deployment, std::move(launch), deployment.gpu);
}
AnyDeployment resolve_again(const EngineDeployment& deployment, launch::Launch launch,
                            models::GpuSpec gpu) {
  if (config_changes(launch) != config_changes(deployment.launch)) {
    throw ConfigError(Problem{"launch line", "changes of the model's config", "varied",
                              "the same ones throughout", "each makes another model"});
  }
  return resolve_for_engine(std::move(launch), deployment.model, std::move(gpu), deployment.card,
                            deployment.assumed);
}

const EngineDeployment& AnyDeployment::common() const {
  return std::visit([](const auto& engine) -> const EngineDeployment& { return engine; }, engine_);
}
EngineDeployment& AnyDeployment::common() {
  return std::visit([](auto& engine) -> EngineDeployment& { return engine; }, engine_);
}

const EngineDeployment& Plan::deployment() const {
  return std::visit([](const auto& on) -> const EngineDeployment& { return on.deployment; },
                    engine_);
}
std::vector<const RankState*> Plan::ranks() const {
  return std::visit(
      [](const auto& on) {
        std::vector<const RankState*> ranks;
        for (const auto& stage : on.startup.stages) {
          ranks.push_back(&stage);
        }
        return ranks;
      },
      engine_);
}
const EngineReport& Plan::report() const {
  return std::visit([](const auto& on) -> const EngineReport& { return on.startup.report; },
                    engine_);
}
const Outcome& Plan::outcome() const {
  return std::visit([](const auto& on) -> const Outcome& { return on.startup.outcome; }, engine_);
}
Outcome& Plan::outcome() {
  return std::visit([](auto& on) -> Outcome& { return on.startup.outcome; }, engine_);
}

Plan start(AnyDeployment deployment, StartMemo* memo) {
  return std::visit(
      [memo](auto&& engine) {
        using Deployment = std::decay_t<decltype(engine)>;
        auto startup = [&] {
          if constexpr (std::is_same_v<Deployment, vllm::Deployment>) {
            vllm::Startup started = simulate_startup(engine, memo);
            engine.max_model_len = started.max_model_len;
            return started;
          } else {
            return simulate_startup(engine);
          }
        }();
        return Plan(
            Plan::Started<Deployment, decltype(startup)>{std::move(engine), std::move(startup)});
      },
      std::move(deployment.engine()));
}

Plan make_plan(AnyDeployment deployment) {
  Plan plan = start(std::move(deployment));
  if (!plan.outcome().fits()) {
    plan.outcome().fixes = find_fixes(plan);
  }
  return plan;
}

}  // namespace oomcast
