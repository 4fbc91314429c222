// Startup of a deployment, as `plan` runs it: resolving the launch, simulating the startup.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "sim/run/plan.hpp"

namespace oomcast {
namespace {

DeploymentInput input() {
  DeploymentInput out;
  out.launch_line =
      "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --max-model-len 16384";
  out.gpu = "H100-80GB";
  return out;
}

void resolve_deployment(benchmark::State& state) {
  const AnyDeployment base = resolve_input(input());
  for (auto _ : state) {
    launch::Launch launch = base.common().launch;
    launch::set_flag(launch, "max-num-seqs", "64");
    benchmark::DoNotOptimize(resolve_again(base.common(), std::move(launch)));
  }
}
BENCHMARK(resolve_deployment);

void start_deployment(benchmark::State& state) {
  const AnyDeployment base = resolve_input(input());
  for (auto _ : state) {
    benchmark::DoNotOptimize(start(base));
  }
}
BENCHMARK(start_deployment);

// As a sweep does it: 0.8 to 0.96 of the card, 20 token budgets.
void start_with_memo(benchmark::State& state) {
  const AnyDeployment base = resolve_input(input());
  vllm::StartupMemo memo;
  std::int64_t point = 0;
  for (auto _ : state) {
    launch::Launch launch = base.common().launch;
    launch::set_flag(launch, "gpu-memory-utilization", fmt::format("0.{}", 80 + point % 16));
    launch::set_flag(launch, "max-num-batched-tokens",
                     std::to_string(2048 + 256 * (point / 16 % 20)));
    AnyDeployment deployment = resolve_again(base.common(), std::move(launch));
    benchmark::DoNotOptimize(
        vllm::simulate_startup(*deployment.as<vllm::Deployment>(), &memo).report);
    ++point;
  }
}
BENCHMARK(start_with_memo);

}  // namespace
}  // namespace oomcast
