// Errors of PyTorch, CUDA and NCCL, traceback frames that tell the phase, shell lines and card
// names: what any engine's log may hold. Source: facts page `runtime` 1.3; PyTorch's own message.
#include "sim/logs/templates.hpp"

namespace oomcast::logs {
namespace {

using namespace rows;
using enum Phase;
using enum FailureKind;

constexpr std::array kRows = {
    // ---- out of memory; the text itself is read by torch_oom.hpp
    fails(row(R"((?:CUDA|HIP) out of memory\. )"), kStartupOom),
    fails(row(R"(\b[Tt]ried (?:to allocate )?{size})"), kStartupOom),
    fails(row(R"(CUDA (?:runtime )?error.*?out of memory)"), kStartupOom),
    fails(row(R"(CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED)"),
          kStartupOom),
    fails(row(R"((?:Failed to CUDA calloc|Cuda failure 2 'out of memory'))"), kStartupOom),
    fails(row(R"(CUDA error: (?:an illegal memory access|device-side assert|unspecified launch))"),
          kEngineError),

    // ---- frames, outermost first: the first of a traceback holds
    frame(R"(line \d+, in (?:load_model|load_weights|_load_model)\b)", kLoad),
    frame(
        R"(line \d+, in (?:determine_available_memory|determine_num_available_blocks|profile_run|)"
        R"(profile_cudagraph_memory|configure_kv_cache_capacity|estimate_max_tokens)\b)",
        kProfile),
    frame(R"(line \d+, in (?:initialize_from_config|initialize_kv_cache|initialize_cache|)"
          R"(init_memory_pool|alloc_memory_pool|profile_max_num_token)\b)",
          kKv),
    frame(
        R"(line \d+, in (?:capture_model|init_cuda_graphs|init_device_graphs|capture_one_batch_size)\b)",
        kCapture),
    frame(R"(line \d+, in (?:_dummy_sampler_run|_dummy_pooler_run|kernel_warmup|warmup_kernels)\b)",
          kWarmup),
    frame(R"(line \d+, in (?:run_busy_loop|event_loop_\w+|_executor_loop\w*|execute_model)\b)",
          kRuntime),

    enters(row(R"(Application startup complete|Uvicorn running on)"), kRuntime),

    // ---- what was typed, and on which card
    row(R"((?:^|[+$#] )((?:[A-Z][A-Z0-9_]*=\S+ +)*(?:vllm serve|trtllm-serve|python3? -m (?:sglang\.launch_server|)"
        R"(vllm\.entrypoints\.openai\.api_server)) .*))",
        again(text(Text::kLaunchLine), Again::kKeep)),
    row(R"(device_name=([A-Za-z0-9][\w-]*))", again(text(Text::kGpu), Again::kKeep)),
    row(R"(GPU \d+: ((?:NVIDIA|Tesla|GeForce|AMD) [\w -]*\w))",
        again(text(Text::kGpu), Again::kKeep)),
    row(R"(\|\s+\d+\s+((?:NVIDIA|Tesla|GeForce) [\w -]*?\w)\s+(?:On|Off)\s*\|)",
        again(text(Text::kGpu), Again::kKeep)),
};

}  // namespace

std::span<const Row> torch_rows() { return kRows; }

}  // namespace oomcast::logs
