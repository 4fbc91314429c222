#include "sim/run/serving_engine.hpp"

#include <string>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/engines/sglang/serving.hpp"

namespace oomcast {
namespace {

void refuse_engine(const EngineDeployment& deployment, Problems& problems) {
  problems.add({"launch line", "", std::string(launch::to_string(deployment.launch.engine)),
                "vllm or sglang for a replay",
                "TensorRT-LLM can be planned, but its scheduler is not modelled yet"});
}

void check_engine(const vllm::Deployment& /*deployment*/, Detail /*detail*/,
                  Problems& /*problems*/) {}

void check_engine(const sglang::Deployment& deployment, Detail detail, Problems& problems) {
  sglang::check_serving(deployment, problems);
  if (detail == Detail::kAllocator) {
    problems.add({"command line", "--detail", "allocator", "classes for SGLang",
                  "its steps are modelled by class, not call by call"});
  }
}

void check_engine(const trtllm::Deployment& deployment, Detail /*detail*/, Problems& problems) {
  refuse_engine(deployment, problems);
}

std::unique_ptr<ServingEngine> serve(Plan::Trtllm plan) {
  Problems problems;
  refuse_engine(plan.deployment, problems);
  throw ConfigError(problems.found());
}

}  // namespace

void check_replay(const AnyDeployment& any, Detail detail, Problems& problems) {
  std::visit([&](const auto& deployment) { check_engine(deployment, detail, problems); },
             any.engine());
  if (any.common().dp > 1) {
    problems.add({"launch line", "--data-parallel-size", std::to_string(any.common().dp),
                  "1 for a replay", "replay one engine with its share of the requests"});
  }
}

std::unique_ptr<ServingEngine> make_serving_engine(Plan plan) {
  return std::visit([](auto&& on) { return serve(std::move(on)); }, std::move(plan.engine()));
}

}  // namespace oomcast
