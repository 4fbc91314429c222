#include "sim/run/serving_engine.hpp"

#include <string>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast {

void check_replay(const AnyDeployment& any, Detail /*detail*/, Problems& problems) {
  const EngineDeployment& deployment = any.common();
  if (deployment.launch.engine != launch::Engine::kVllm) {
    problems.add({"launch line", "", std::string(launch::to_string(deployment.launch.engine)),
                  "vllm for a replay", "other engines can be planned, but not replayed yet"});
  }
  if (deployment.dp > 1) {
    problems.add({"launch line", "--data-parallel-size", std::to_string(deployment.dp),
                  "1 for a replay", "replay one engine with its share of the requests"});
  }
}

std::unique_ptr<ServingEngine> make_serving_engine(Plan plan) {
  Problems problems;
  problems.add({"launch line", "", std::string(launch::to_string(plan.deployment().launch.engine)),
                "vllm for a replay", "other engines can be planned, but not replayed yet"});
  auto* vllm = plan.as<Plan::Vllm>();
  if (vllm == nullptr) {
    problems.raise_if_any();
  }
  return serve(std::move(*vllm));
}

}  // namespace oomcast
