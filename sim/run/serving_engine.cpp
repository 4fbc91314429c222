#include "sim/run/serving_engine.hpp"

#include <string>
#include <utility>

#include "sim/engines/sglang/serving.hpp"
#include "sim/engines/trtllm/serving.hpp"

namespace oomcast {
namespace {

void check_engine(const vllm::Deployment& /*deployment*/, Problems& /*problems*/) {}
void check_engine(const sglang::Deployment& deployment, Problems& problems) {
  sglang::check_serving(deployment, problems);
}
void check_engine(const trtllm::Deployment& deployment, Problems& problems) {
  trtllm::check_serving(deployment, problems);
}

void check_alone(const EngineDeployment& /*deployment*/, Problems& /*problems*/) {}
void check_alone(const sglang::Deployment& deployment, Problems& problems) {
  sglang::check_serves_alone(deployment, problems);
}

}  // namespace

void check_replay(const AnyDeployment& any, Detail detail, Problems& problems) {
  std::visit([&](const auto& engine) { check_alone(engine, problems); }, any.engine());
  check_member(any, detail, problems);
}

void check_member(const AnyDeployment& any, Detail detail, Problems& problems) {
  const EngineDeployment& deployment = any.common();
  std::visit([&](const auto& engine) { check_engine(engine, problems); }, any.engine());
  if (detail == Detail::kAllocator && deployment.launch.engine != launch::Engine::kVllm) {
    problems.add({"command line", "--detail", "allocator",
                  "classes for " + std::string(launch::to_string(deployment.launch.engine)),
                  "its steps are modelled by class, not call by call"});
  }
  if (deployment.dp > 1) {
    problems.add({"launch line", "--data-parallel-size", std::to_string(deployment.dp),
                  "1 for a replay", "replay one engine with its share of the requests"});
  }
}

std::unique_ptr<ServingEngine> make_serving_engine(Plan plan) {
  return std::visit([](auto&& on) { return serve(std::move(on)); }, std::move(plan.engine()));
}

}  // namespace oomcast
