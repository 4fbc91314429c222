#include "tests/unit/logs/printed_log.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace oomcast {
namespace {

std::string line(const std::string& text) {
  return "(EngineCore_DP0 pid=214) INFO 11-29 10:00:01 [gpu_worker.py:298] " + text + "\n";
}

std::string two(const std::optional<Bytes>& bytes) {
  return fmt::format("{:.2f}", to_gib(bytes.value_or(Bytes{0})));
}

// As the engine's first snapshot finds it.
Bytes free_at_start(const Plan& plan) {
  for (const PhaseRecord& phase : plan.ranks().front()->phases) {
    if (phase.name == "communicators") {
      return plan.deployment().device_total() - phase.views.device_used;
    }
  }
  return plan.deployment().device_total();
}

// Kernel files are named after the card.
std::string in_file_names(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

std::string long_line(const Plan& plan) {
  const EngineReport& report = plan.report();
  const auto& state = plan.as<Plan::Vllm>()->startup.stages.front();
  const std::string usage =
      report.consumed
          ? fmt::format(
                "{} GiB for consumed memory (weights + non-torch), {} GiB for peak "
                "activation, and {} GiB for CUDAGraph memory",
                two(report.consumed), two(report.activation_peak), two(report.cudagraph))
          : fmt::format(
                "{} GiB for weight, {} GiB for peak activation, {} GiB for non-torch memory, "
                "and {} GiB for CUDAGraph memory",
                two(report.weights), two(report.activation_peak), two(report.non_torch),
                two(report.cudagraph));
  return line(fmt::format(
      "Free memory on device cuda:0 ({}/{} GiB) on startup. Desired GPU memory utilization is ({}, "
      "{} GiB). Actual usage is {}. Current kv cache memory in use is {} GiB.",
      two(free_at_start(plan)), two(report.total),
      plan.as<Plan::Vllm>()->deployment.gpu_memory_utilization, two(state.requested), usage,
      two(report.available_kv)));
}

}  // namespace

std::string printed_vllm_log(const Plan& plan, const std::string& launch_line) {
  const EngineReport& report = plan.report();
  const std::string version = to_string(plan.deployment().launch.version);
  std::string log = "+ " + launch_line + "\n" +
                    fmt::format(
                        "(APIServer pid=7) INFO 11-29 [api_server.py:1] vLLM API server "
                        "version {}\n",
                        version);
  log += line("device_name=" + in_file_names(plan.deployment().gpu.name));
  log += line(fmt::format("Model loading took {} GiB memory and 3.1 seconds", two(report.weights)));
  if (report.cudagraph_estimate) {
    log += line("Estimated CUDA graph memory: " + two(report.cudagraph_estimate) + " GiB total");
  }
  log += line(fmt::format("Available KV cache memory: {} GiB", two(report.available_kv)));
  if (!plan.outcome().fits()) {
    return log + long_line(plan) + line("ValueError: " + plan.outcome().message);
  }
  log += line(fmt::format(
      "GPU KV cache size: {} tokens, Maximum concurrency for {} tokens per "
      "request: {:.2f}x",
      *report.kv_tokens, plan.deployment().max_model_len.count(), *report.max_concurrency));
  if (report.cudagraph) {
    log += line(
        fmt::format("Graph capturing finished in 21 secs, took {} GiB", two(report.cudagraph)));
  }
  return log + long_line(plan) +
         line("init engine (profile, create kv cache, warmup model) took 42.41 seconds");
}

std::string printed_sglang_log(const Plan& plan, const std::string& launch_line) {
  const EngineReport& report = plan.report();
  const auto line = [](const std::string& text) { return "[2026-11-29 10:00:01] " + text + "\n"; };
  const std::string half = two(Bytes{report.available_kv->count() / 2});
  return "+ " + launch_line + "\n" +
         line(fmt::format("Load weight begin. avail mem={} GB",
                          two(*report.available_after_load + *report.weights))) +
         line(fmt::format("Load weight end. elapsed=3.10 s, type=LlamaForCausalLM, "
                          "dtype=torch.bfloat16, avail mem={} GB, mem usage={} GB.",
                          two(report.available_after_load), two(report.weights))) +
         line(fmt::format(
             "KV Cache is allocated. dtype: torch.bfloat16, #tokens: {}, K size: {} GB, V size: {} "
             "GB",
             *report.kv_tokens, half, half)) +
         line(fmt::format("Memory pool end. avail mem={} GB", two(report.available_after_pool))) +
         line(fmt::format(
             "Capture cuda graph end. Time elapsed: 9.10 s. mem usage={} GB. avail mem={} GB.",
             two(report.cudagraph), two(report.available_at_end))) +
         line(fmt::format("max_total_num_tokens={}, chunked_prefill_size=8192, "
                          "max_prefill_tokens=16384, max_running_requests={}, context_len={}, "
                          "available_gpu_mem={} GB",
                          *report.kv_tokens, *report.max_running_requests,
                          plan.deployment().max_model_len.count(), two(report.available_at_end)));
}

std::string printed_trtllm_log(const Plan& plan, const std::string& launch_line) {
  const EngineReport& report = plan.report();
  const auto line = [](const std::string& text) {
    return "[11/29/2026-10:00:00] [TRT-LLM] [I] " + text + "\n";
  };
  return "+ " + launch_line +
         "\n[TensorRT-LLM] TensorRT-LLM version: " + to_string(plan.deployment().launch.version) +
         "\n" +
         line(fmt::format("Memory used after loading model weights (inside torch) in memory usage "
                          "profiling: {} GiB",
                          two(report.weights))) +
         line(fmt::format("Memory dynamically allocated during inference (inside torch) in memory "
                          "usage profiling: {} GiB",
                          two(report.activation_peak))) +
         line(fmt::format("Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage "
                          "profiling: {} GiB",
                          two(report.non_torch))) +
         line(fmt::format("Peak memory during memory usage profiling (torch + non-torch): {} GiB, "
                          "available KV cache memory when calculating max tokens: {} GiB, "
                          "fraction is set 0.9, kv size per token is 131072 bytes/token, device "
                          "total memory {} GiB",
                          two(*report.total - *report.available_kv), two(report.available_kv),
                          two(report.total))) +
         "[TensorRT-LLM][INFO] Number of tokens per block: 32.\n" +
         fmt::format(
             "[TensorRT-LLM][INFO] [MemUsageChange] Allocated {} GiB for max tokens in "
             "paged KV cache ({}).\n",
             two(report.available_kv), *report.kv_tokens);
}

Plan plan_of(const std::string& launch_line, const std::string& gpu, const std::string& version) {
  DeploymentInput input;
  input.launch_line = launch_line;
  input.gpu = gpu;
  input.engine_version = version;
  return start(resolve_input(input));
}

}  // namespace oomcast
