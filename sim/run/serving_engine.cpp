#include "sim/run/serving_engine.hpp"

#include <string>
#include <utility>

#include "sim/engines/sglang/host_pool.hpp"
#include "sim/engines/sglang/serving.hpp"
#include "sim/engines/trtllm/serving.hpp"
#include "sim/engines/vllm/host_pool.hpp"

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

bool keeps_host_tier(const vllm::Deployment& deployment) {
  return vllm::host_pool(deployment).has_value();
}
bool keeps_host_tier(const sglang::Deployment& deployment) {
  return sglang::has_host_tier(deployment);
}
bool keeps_host_tier(const trtllm::Deployment& deployment) {
  return deployment.host_cache > Bytes{0};
}

void check_server(const AnyDeployment& any, Detail detail, Problems& problems) {
  std::visit([&](const auto& engine) { check_engine(engine, problems); }, any.engine());
  if (detail == Detail::kAllocator && any.common().launch.engine != launch::Engine::kVllm) {
    problems.add({"command line", "--detail", "allocator",
                  "classes for " + std::string(launch::to_string(any.common().launch.engine)),
                  "its steps are modelled by class, not call by call"});
  }
}

void check_replicas(const AnyDeployment& any, Detail detail, Problems& problems) {
  const std::string replicas = std::to_string(any.common().replicas());
  if (detail == Detail::kAllocator) {
    problems.add({"command line", "--detail", "allocator",
                  "classes for " + replicas + " data-parallel replicas",
                  "replay one of them with its share of the requests"});
  }
  if (std::visit([](const auto& engine) { return keeps_host_tier(engine); }, any.engine())) {
    problems.add({"launch line", "--data-parallel-size", replicas,
                  "1 for a replay with a host tier", "shares of one tier are not modelled yet"});
  }
}

}  // namespace

void check_replay(const AnyDeployment& any, Detail detail, Problems& problems) {
  std::visit([&](const auto& engine) { check_alone(engine, problems); }, any.engine());
  check_server(any, detail, problems);
  if (any.common().replicas() > 1) {
    check_replicas(any, detail, problems);
  }
}

void check_member(const AnyDeployment& any, Detail detail, Problems& problems) {
  check_server(any, detail, problems);
  if (any.common().replicas() > 1) {
    problems.add({"launch line", "--data-parallel-size", std::to_string(any.common().replicas()),
                  "1 in a cluster", "more servers instead of replicas"});
  }
}

std::unique_ptr<ServingEngine> make_serving_engine(Plan plan) {
  return std::visit([](auto&& on) { return serve(std::move(on)); }, std::move(plan.engine()));
}

}  // namespace oomcast
