// TensorRT-LLM's lines, 0.13 to 1.2 and newer, both backends. Source: facts page `trtllm` 7.
#include "sim/logs/templates.hpp"

namespace oomcast::logs {
namespace {

using namespace rows;
using enum Figure;
using enum Phase;
using enum FailureKind;

constexpr std::array kRows = {
    // ---- who and what
    starts(enters(row(R"(TensorRT-LLM version: v?(\d[\w.+-]*))", text(Text::kVersion)), kContext)),
    row(R"((?:tensorrt[-_]llm|tensorrt-llm/release)(?::|==|@ ?)v?(\d+\.\d+[\w.+-]*))",
        again(text(Text::kVersion), Again::kKeep)),
    row(R"(\bLLM [Aa]rgs: ?(.*))", text(Text::kArguments)),
    row(R"(\b(?:Torch|Trt)?LlmArgs\((.*))", text(Text::kArguments)),
    row(R"(\[TRT-LLM\]|\[TensorRT-LLM\])"),

    // ---- the estimation run
    enters(row(R"(Memory used after loading model weights \(inside torch\).*?: {n} ?GiB)",
               gib(kWeights)),
           kProfile),
    row(R"(Memory used after loading model weights \(outside torch\).*?: {n} ?GiB)",
        gib(kWeightsOutsideTorch)),
    row(R"(Memory dynamically allocated during inference \(inside torch\).*?: {n} ?GiB)",
        gib(kActivationPeak)),
    row(R"(Memory used outside torch \(e\.g\., NCCL and CUDA graphs\).*?: {n} ?GiB)",
        gib(kNonTorch)),
    enters(row(R"(Peak memory during memory usage profiling \(torch \+ non-torch\): {n} ?GiB, )"
               R"(available KV cache memory when calculating max tokens: {n} ?GiB, )"
               R"(fraction is set {n})",
               gib(kPeak), gib(kFreeForKv), count(kUtilization)),
           kKv),
    row(R"(\bkv size(?: per token)? is {n})", Capture{kKvPerToken, Unit::kByte}),
    row(R"(device total memory {n} ?GiB)", gib(kTotal)),
    row(R"((?:temporary kv cache memory during profiling|tmp kv_mem) {n} ?GiB)", gib(kTemporaryKv)),
    row(R"(Estimated max memory in KV cache ?: {n} ?GiB)", gib(kAvailableKv)),
    row(R"(Reserving {n} ?GiB for the context-MLA attention workspace)", gib(kSchedulerReserve)),

    // ---- pools
    enters(row(R"(\bAllocated {n} ?GiB for max tokens in paged KV cache \({n}\))",
               gib(kAvailableKv), count(kKvTokens)),
           kCapture),
    row(R"(Memory usage when calculating max tokens in paged kv cache: total: {n} ?GiB, )"
        R"(available: {n} ?GiB)",
        gib(kTotal), gib(kFreeForKv)),
    row(R"(Number of tokens per block: {n})", count(kBlockSize)),
    row(R"(Number of blocks in KV cache primary pool(?: for windowSize \d+)?: {n})",
        count(kKvBlocks)),
    row(R"(Window size = \d+, primary_blocks: {n})", again(count(kKvBlocks), Again::kKeep)),
    row(R"(KV cache manager v2 device quota set to {n} ?GiB)", gib(kAvailableKv)),
    row(R"(Adjusted max_seq_len to {n})", count(kMaxModelLen)),
    row(R"(Attention window size \d+ exceeds upper bound \d+ .*Reducing to {n})",
        count(kMaxModelLen)),

    // ---- graphs and serving
    enters(row(R"(Creating CUDA graph instances for {n} batch sizes)", count(kFullGraphs)),
           kCapture),
    row(R"(Run generation-only CUDA graph warmup for batch size={n})",
        again(count(kFullLargest), Again::kMost)),
    enters(row(R"(\biter = \d+, global_rank = )"), kRuntime),
    row(R"(kv_cache_util(?:ization)?\W+([\d.]+))", again(count(kKvUsage), Again::kMost)),

    // ---- refusals and failures
    fails(row(R"(Executor creation failed due to insufficient GPU memory)"), kStartupOom),
    fails(row(R"(The following component could not be created: (.*))", text(Text::kStage)),
          kStartupOom),
    row(R"(KV cache could not be created: total {n}, free {n})", gib(kTotal),
        gib(kFreeBeforeStage)),
    row(R"(Total GPU memory \(GiB\): {n})", gib(kTotal)),
    row(R"(Free GPU memory before component creation attempt \(GiB\): {n})", gib(kFreeBeforeStage)),
    row(R"(\bModel(?: \(\w+\))?: {n} ?(?:/|->) ?{n})", gib(kFreeAtStart), gib(kFreeAfterLoad)),
    row(R"(^\W*Model:? {n} ?(?:/|->) ?{n})", gib(kFreeAtStart), gib(kFreeAfterLoad)),
    fails(row(R"(Impossible to fit in any sequence in kvCache)"), kKvTooSmall, kKv),
    fails(row(R"(KV cache GPU budget \({n} ?GiB\) is insufficient after the combined fixed cost)",
              gib(kAvailableKv)),
          kKvTooSmall, kKv),
    fails(row(R"(Invalid freeMemFraction)"), kConfigRejected, kKv),
    fails(row(R"(Can't allocate new blocks\. No free blocks left)"), kRuntimeOom, kRuntime),
    fails(row(R"(The number of context tokens \(\d+\) exceeds the limit value \(\d+\))"),
          kConfigRejected),
    row(R"(OOM during general warmup with \d+ tokens)"),
};

}  // namespace

std::span<const Row> trtllm_rows() { return kRows; }

}  // namespace oomcast::logs
