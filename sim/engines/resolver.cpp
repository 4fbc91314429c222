#include "sim/engines/resolver.hpp"

#include <string_view>

#include "sim/kernels/gemm.hpp"

namespace oomcast {

void settle_torch(EngineDeployment& deployment, const Version& torch, Problems& problems) {
  for (const std::string_view name : allocator::kConfVariables) {
    if (const auto text = deployment.launch.variable(name)) {
      deployment.allocator_settings =
          allocator::parse_allocator_settings(*text, name, problems, deployment.warnings);
      break;
    }
  }
  deployment.cublas_workspace = kernels::cublas_default_workspace(torch, deployment.gpu);
  if (const auto text = deployment.launch.variable("CUBLAS_WORKSPACE_CONFIG")) {
    deployment.cublas_workspace = kernels::cublas_workspace_config(
        *text, deployment.cublas_workspace, problems, deployment.warnings);
  }
  if (deployment.allocator_settings.backend != allocator::Backend::kNative) {
    problems.add({"launch line", "backend", "cudaMallocAsync", "native",
                  "only PyTorch's own allocator is modelled"});
  }
}

void add_notes(EngineDeployment& deployment, const std::vector<std::string>& provenance) {
  for (const models::Assumption& assumption : deployment.model->assumptions) {
    deployment.assumptions.push_back(models::to_string(assumption));
  }
  const auto append = [](std::vector<std::string>& all, const std::vector<std::string>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  append(deployment.warnings, deployment.model->notes);
  append(deployment.warnings, deployment.launch.warnings);
  append(deployment.assumptions, provenance);
}

void add_float8_knob(const EngineDeployment& deployment, const char* value,
                     std::vector<Knob>& knobs) {
  constexpr int kFirstWithFloat8 = 89;
  const int capability = 10 * deployment.gpu.compute_major + deployment.gpu.compute_minor;
  if (deployment.kv_dtype != models::DType::kFloat8 && capability >= kFirstWithFloat8) {
    knobs.push_back({Knob::Kind::kValue, "kv-cache-dtype", 0, 1, value});
  }
}

}  // namespace oomcast
