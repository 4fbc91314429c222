// Startup of a deployment, as `plan` runs it: resolving the launch, simulating the startup.
#include <benchmark/benchmark.h>

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

}  // namespace
}  // namespace oomcast
