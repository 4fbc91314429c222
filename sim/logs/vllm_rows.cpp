// vLLM's lines, 0.6 to 0.33. Source: facts page `vllm` 2.5 and 2.6; the forms before 0.10 from that
// version's worker. Rows without captures are there for what they tell of the version or the phase.
#include "sim/logs/templates.hpp"

namespace oomcast::logs {
namespace {

using namespace rows;
using enum Figure;
using enum Phase;
using enum FailureKind;

constexpr std::array kRows = {
    // ---- who and what
    starts(row(R"(vLLM API server version v?(\d[\w.+-]*))", text(Text::kVersion))),
    starts(row(R"(non-default args: (\{.*))", text(Text::kArguments))),
    starts(row(R"(\bargs: Namespace\((.*))", text(Text::kArguments))),
    enters(row(R"(Initializing an? (?:V1 )?LLM engine \(v?(\d[\w.+-]*)\) with config: (.*))",
               text(Text::kVersion), text(Text::kConfig)),
           kContext),
    row(R"(utils\.py:\d+\].*\s+version v?(\d[\w.+-]*)\s*$)", text(Text::kVersion)),
    row(R"(utils\.py:\d+\].*\s+model {3}(\S+)\s*$)", again(text(Text::kModel), Again::kKeep)),
    row(R"(vllm(?:-openai)?(?::|==|@ ?)v?(\d+\.\d+\.\d+[\w.+-]*))",
        again(text(Text::kVersion), Again::kKeep)),
    row(R"(vLLM is using nccl==)"),
    row(R"(Using max model len {n})", again(count(kMaxModelLen), Again::kKeep)),
    row(R"(Chunked prefill is enabled with max_num_batched_tokens={n})", count(kBatchTokens)),
    until(row(R"(Using V1 model runner|VLLM_USE_V1)"), v(0, 10, 2)),
    since(row(R"(Using V2 Model Runner)"), v(0, 20)),

    // ---- loading
    enters(row(R"(Starting to load model (\S+?)(?:\.\.\.|$))",
               again(text(Text::kModel), Again::kKeep)),
           kLoad),
    enters(row(R"((?:Model loading|Loading model weights|Loading weights) took {n} ?G)",
               gib(kWeights)),
           kProfile),
    until(row(R"(Loading model weights took [\d.]+ ?GB)"), v(0, 7, 3)),
    until(row(R"(Model loading took [\d.]+ Gi?B and [\d.]+ seconds)"), v(0, 13)),
    since(row(R"(Model loading took [\d.]+ GiB memory and)"), v(0, 14)),

    // ---- profiling
    row(R"(Memory profiling (?:takes|results))"),
    until(row(R"(total_gpu_memory=([\d.]+)GiB.*?peak_torch_memory=([\d.]+)GiB.*?)"
              R"(non_torch_memory=([\d.]+)GiB.*?kv_cache_size=([\d.]+)GiB.*?)"
              R"(gpu_memory_utilization=([\d.]+))",
              gib(kTotal), gib(kPeak), gib(kNonTorch), gib(kAvailableKv), count(kUtilization)),
          v(0, 6, 5)),
    until(row(R"(total_gpu_memory \({n} ?GiB\) x gpu_memory_utilization \({n}\) = {n} ?GiB)",
              gib(kTotal), count(kUtilization), gib(kRequested)),
          v(0, 9, 2)),
    until(row(R"(model weights take {n} ?GiB; non_torch_memory takes {n} ?GiB; PyTorch activation )"
              R"(peak memory takes {n} ?GiB; the rest of the memory reserved for KV Cache is {n})",
              gib(kWeights), gib(kNonTorch), gib(kActivationPeak), gib(kAvailableKv)),
          v(0, 9, 2)),
    row(R"(Total non KV cache memory: {n} ?GiB)", gib(kNonKvTotal)),
    row(R"(torch peak memory increase: {n} ?GiB)", gib(kActivationPeak)),
    until(row(R"(non-torch forward increase memory: {n} ?GiB)", gib(kNonTorch)), v(0, 26, 9)),
    since(row(R"(total consumed \(from mem_get_info\): {n} ?GiB)", gib(kConsumed)), v(0, 27)),
    row(R"(weights memory: {n} ?GiB)", gib(kWeights)),
    row(R"(Initial free memory: {n} GiB; Requested memory: {n} \(util\), {n} GiB)",
        gib(kFreeAtStart), count(kUtilization), gib(kRequested)),
    row(R"(Free memory after profiling: {n} GiB \(total\))", gib(kFreeAfterProfile)),
    since(row(R"(Profiling CUDA graph memory:)"), v(0, 18)),
    row(R"(\bPIECEWISE={n} \(largest={n}\))", count(kPiecewiseGraphs), count(kPiecewiseLargest)),
    row(R"(\bFULL={n} \(largest={n}\))", count(kFullGraphs), count(kFullLargest)),
    since(row(R"(Estimated CUDA graph memory: {n} ?GiB)", gib(kGraphEstimate)), v(0, 18)),
    since(row(R"(CUDA graph memory profiling is enabled)"), v(0, 18)),

    // ---- KV cache
    enters(row(R"(Available KV cache memory: {n} ?GiB)", gib(kAvailableKv)), kKv),
    enters(row(R"(Initial free memory {n} ?GiB, reserved {n} ?GiB memory for KV Cache)",
               gib(kFreeAtStart), gib(kAvailableKv)),
           kKv),
    enters(
        row(R"((?:GPU|XPU|CPU|GPU \+ host) KV cache size(?: as reported at startup)?: {n} tokens)",
            count(kKvTokens)),
        kCapture),
    until(row(R"(KV cache size: [\d,]+ tokens\s*$)"), v(0, 27, 9)),
    since(row(R"(KV cache size: [\d,]+ tokens, Maximum concurrency)"), v(0, 28)),
    row(R"(Maximum concurrency for {n} tokens per request: {n}x)", count(kMaxModelLen),
        count(kMaxConcurrency)),
    row(R"(Multiplying the GPU KV cache size by the d?cp_world_size {n})", count(kKvFactor)),
    until(row(R"(KV cache size by the dcp_world_size)"), v(0, 11, 2)),
    until(since(row(R"(KV cache size by the cp_world_size)"), v(0, 12)), v(0, 20, 9)),
    since(row(R"(kv cache group sizes|kv lcm block sizes)"), v(0, 31)),
    enters(until(row(R"(# (?:GPU|cuda|CUDA) blocks: {n}, # (?:CPU|cpu) blocks:)", count(kKvBlocks)),
                 v(0, 10, 2)),
           kCapture),
    row(R"(Overriding num_gpu_blocks=\d+ with num_gpu_blocks_override={n})", count(kKvBlocks)),
    row(R"(Setting attention block size to {n} tokens)", count(kBlockSize)),
    since(row(R"(Setting kv cache block size to {n} for)", count(kBlockSize)), v(0, 14)),
    since(row(R"(Auto-fit max_model_len: reduced from \d+ to {n})", count(kMaxModelLen)), v(0, 14)),

    // ---- graphs and the long line
    row(R"(CUDA graph pool memory: {n} ?GiB \(actual\), {n} ?GiB \(estimated\))", gib(kGraphPool),
        gib(kGraphEstimate)),
    enters(row(R"(Graph capturing .*?took {n} ?G)", gib(kGraphs)), kWarmup),
    row(R"(Free memory on device(?: \S+)? \({n}/{n} GiB\))", gib(kFreeAtStart), gib(kTotal)),
    until(row(R"(Free memory on device \()"), v(0, 11, 2)),
    row(R"((?:[Dd]esired GPU memory utilization(?: is)? |\.\.\. ?)\({n}, {n} GiB\))",
        count(kUtilization), gib(kRequested)),
    until(row(R"(Actual usage is {n} GiB for weight, {n} GiB for peak activation, {n} GiB for )"
              R"(non-torch memory, and {n} GiB for CUDAGraph memory)",
              gib(kWeights), gib(kActivationPeak), gib(kNonTorch), gib(kGraphs)),
          v(0, 26, 9)),
    since(
        row(R"(Actual usage is {n} GiB for consumed memory \(weights \+ non-torch\), {n} GiB for )"
            R"(peak activation, and {n} GiB for CUDAGraph memory)",
            gib(kConsumed), gib(kActivationPeak), gib(kGraphs)),
        v(0, 27)),
    row(R"(--kv-cache-memory=(\d+)`? \([\d.]+ GiB\) to fit into requested)",
        Capture{kKvMemoryAdvice, Unit::kByte}),
    row(R"(Current kv cache memory in use is {n} GiB)", gib(kKvInUse)),

    // ---- ready and serving
    enters(row(R"(init engine \(profile, create kv cache, warmup model\) took)"), kReady),
    enters(row(R"(Starting vLLM API server)"), kRuntime),
    enters(row(R"(Avg prompt throughput: .*KV cache usage: {n}%)",
               Capture{kKvUsage, Unit::kPercent, Again::kMost}),
           kRuntime),
    row(R"(Preemptions: {n})", again(count(kPreemptions), Again::kMost)),

    // ---- refusals and failures
    fails(
        row(R"(Free memory on device(?: \S+)? \(.*on startup is less than desired GPU memory util)"),
        kStartupOom, kContext),
    fails(row(R"(Error in memory profiling\. Initial free memory {n})", gib(kFreeAtStart)),
          kConfigRejected, kProfile),
    fails(row(R"(No available memory for the cache blocks)"), kKvTooSmall, kKv),
    fails(row(R"({n} ?GiB KV cache is needed, which is larger than the available KV cache memory )"
              R"(\({n} ?GiB\))",
              gib(kKvNeeded), gib(kAvailableKv)),
          kKvTooSmall, kKv),
    until(row(R"(with the models's max seq len)"), v(0, 21, 9)),
    since(row(R"(with the model's max seq len)"), v(0, 22)),
    row(R"(max seq len \({n}\))", count(kMaxModelLen)),
    row(R"(estimated maximum model length is {n})", count(kEstimatedMaxModelLen)),
    fails(
        until(row(R"(max seq len \(\d+\) is larger than the maximum number of tokens that can be )"
                  R"(stored in KV cache \({n}\))",
                  count(kKvTokens)),
              v(0, 10, 2)),
        kKvTooSmall, kKv),
    fails(since(row(R"(Cannot auto-fit max_model_len)"), v(0, 14)), kKvTooSmall, kKv),
    fails(
        row(R"(out of memory occurred when warming up (?:sampler|pooler)(?: \(\w+\))? with {n} dummy)",
            count(kMaxNumSeqs)),
        kStartupOom, kWarmup),
    fails(row(R"(max_num_seqs \({n}\) exceeds available Mamba cache blocks(?: \({n}\))?)",
              count(kMaxNumSeqs), count(kStateBlocks)),
          kConfigRejected, kKv),
    fails(row(R"(Hybrid KV cache manager is disabled but failed to convert)"), kConfigRejected,
          kKv),
    fails(row(R"(Total number of attention heads \(\d+\) must be divisible by)"), kConfigRejected,
          kContext),
    fails(row(R"(User-specified max_model_len \({n}\) is greater than the derived)",
              count(kMaxModelLen)),
          kConfigRejected, kContext),
    fails(row(R"(Workspace is locked but allocation from '[^']*' requires)"), kEngineError),
    fails(row(R"(EngineCore failed to start|Engine core initialization failed|EngineDeadError)"),
          kEngineError),
};

}  // namespace

std::span<const Row> vllm_rows() { return kRows; }

}  // namespace oomcast::logs
