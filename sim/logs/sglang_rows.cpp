// SGLang's lines, 0.4 to 0.5.23. Source: facts page `sglang` 5 and 6. "GB" there is 2^30 bytes.
#include "sim/logs/templates.hpp"

namespace oomcast::logs {
namespace {

using namespace rows;
using enum Figure;
using enum Phase;
using enum FailureKind;

constexpr std::array kRows = {
    // ---- who and what
    starts(enters(row(R"(server_args=ServerArgs\((.*))", text(Text::kArguments)), kContext)),
    row(R"(sglang(?::|==|@ ?| version[: ]+)v?(\d+\.\d+\.\d+[\w.+-]*))",
        again(text(Text::kVersion), Again::kKeep)),
    row(R"(Init torch distributed begin)"),
    enters(until(row(R"(Init torch distributed ends?\.(?: elapsed=[\d.]+ s,)? mem usage={n} ?GB)",
                     gib(kContextUse)),
                 v(0, 5, 8)),
           kLoad),
    enters(since(row(R"(Memory baseline taken\. mem usage={n} ?GB)", gib(kContextUse)), v(0, 5, 9)),
           kLoad),

    // ---- loading
    enters(row(R"(Load weight begin\. avail mem={n} ?GB)", again(gib(kFreeAtStart), Again::kKeep)),
           kLoad),
    enters(row(R"(Load weight end\..*?avail mem={n} ?GB)", gib(kFreeAfterLoad)), kKv),
    row(R"(Load weight end\..*?mem usage={n} ?GB)", then(gib(kWeights), kDraftWeights)),
    since(row(R"(Load weight end\. elapsed=)"), v(0, 5, 9)),
    until(row(R"(Load weight end\. type=)"), v(0, 5, 8)),

    // ---- pools
    since(row(R"(Reserving {n} ?GB of the KV budget)", gib(kMultimodalReserve)), v(0, 5, 9)),
    row(R"(KV Cache (?:is allocated|VA upper bound)\..*?#tokens: {n})",
        again(count(kKvTokens), Again::kKeep)),
    row(R"(KV Cache is allocated\..*?K size: {n} ?GB)", then(gib(kKeys), kMoreKv)),
    row(R"(KV Cache is allocated\..*?V size: {n} ?GB)", then(gib(kValues), kMoreKv)),
    row(R"(KV Cache is allocated\..*?KV size: {n} ?GB)", then(gib(kKeys), kMoreKv)),
    since(row(R"(KV Cache (?:is allocated|VA upper bound)\. dtype:)"), v(0, 5, 9)),
    until(row(R"(KV Cache is allocated\. #tokens:)"), v(0, 5, 8)),
    row(R"(full_layer_tokens={n}, swa_layer_tokens={n})", count(kKvTokens), count(kSwaTokens)),
    row(R"(SWAKVPool mem usage: {n} ?GB, swa size: {n}, full size: {n})", gib(kAvailableKv),
        count(kSwaTokens), count(kKvTokens)),
    row(R"(max_mamba_cache_size: {n}, conv_state size: {n} ?GB, ssm_state size: {n} ?GB)",
        count(kStateSlots), gib(kConvState), gib(kSsmState)),
    row(R"(intermediate_ssm_state_cache size: {n} ?GB)",
        again(gib(kIntermediateState), Again::kAdd)),
    row(R"(intermediate_conv_window_cache size: {n} ?GB)",
        again(gib(kIntermediateState), Again::kAdd)),
    enters(row(R"(Memory pool end\. avail mem={n} ?GB)", gib(kFreeAfterPool)), kCapture),

    // ---- graphs
    enters(row(R"([Cc]apture .*graph begin\b.*?avail mem={n} ?GB)",
               again(gib(kFreeBeforeCapture), Again::kKeep)),
           kCapture),
    enters(row(R"([Cc]apture .*graph end\b.*?mem usage={n} ?GB)", again(gib(kGraphs), Again::kAdd)),
           kWarmup),
    enters(row(R"([Cc]apture .*graph end\b.*?avail mem={n} ?GB)", gib(kFreeAfterCapture)), kWarmup),
    until(row(R"(Capture cuda graph (?:begin|end))"), v(0, 5, 8)),
    since(row(R"(Capture (?:target|draft) (?:decode|verify|prefill) CUDA graph)"), v(0, 5, 9)),
    since(row(R"(Post-capture KV sizing: full_layer_tokens={n}, swa_layer_tokens={n})",
              count(kKvTokens), count(kSwaTokens)),
          v(0, 5, 9)),
    since(row(R"(KV cache allocated\. dtype: \S+, #tokens: {n}, KV size: {n} ?GB, avail mem={n})",
              count(kKvTokens), gib(kAvailableKv), gib(kFreeAfterPool)),
          v(0, 5, 9)),

    // ---- ready and serving
    enters(row(R"(max_total_num_tokens={n},)", count(kKvTokens)), kReady),
    row(R"(max_total_num_tokens=.*?chunked_prefill_size={n},)", count(kBatchTokens)),
    row(R"(max_total_num_tokens=.*?max_running_requests={n}, context_len={n})", count(kMaxRunning),
        count(kMaxModelLen)),
    row(R"(max_total_num_tokens=.*?available_gpu_mem={n} ?GB)", gib(kFreeWhenReady)),
    enters(row(R"(The server is fired up and ready to roll)"), kRuntime),
    enters(row(R"((?:Prefill|Decode) batch[ .,\[].*?token usage: {n})",
               again(count(kKvUsage), Again::kMost)),
           kRuntime),
    row(R"(KV cache pool is full\. Retract requests\. #retracted_reqs: {n})",
        again(count(kRetracted), Again::kAdd)),
    row(R"(max_total_tokens=\d+ is larger than the profiled value {n}\.)", count(kKvTokens)),

    // ---- refusals and failures
    fails(row(R"(Not enough memory\. Please try to increase --mem-fraction-static\..*?=([\d.]+\d))",
              count(kUtilization)),
          kKvTooSmall, kKv),
    fails(
        since(
            row(R"(Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={n})",
                count(kUtilization)),
            v(0, 5, 9)),
        kKvTooSmall, kKv),
    fails(row(R"(Not enough GPU memory for hybrid \(mamba/linear-attention\) state cache.*?)"
              R"((?:max_mamba_cache_size={n})?)",
              count(kStateSlots)),
          kKvTooSmall, kKv),
    fails(row(R"(Hybrid \(mamba/linear-attention\) state cache is too small)"), kKvTooSmall, kKv),
    fails(row(R"(SWA pool cap \({n} tokens, [\d.]+ GiB\) leaves no room)", count(kSwaTokens)),
          kKvTooSmall, kKv),
    fails(row(R"(SWA pool \({n} tokens\) cannot hold even one request)", count(kSwaTokens)),
          kKvTooSmall, kKv),
    fails(row(R"(Memory pool size is too small)"), kKvTooSmall, kKv),
    fails(row(R"(The memory capacity is unbalanced\. Some GPUs may be occupied)"), kConfigRejected,
          kContext),
    fails(row(R"(Capture cuda graph failed)"), kStartupOom, kCapture),
    fails(row(R"((?:Prefill|Decode) out of memory\. Try to lower your batch size)"), kRuntimeOom,
          kRuntime),
    fails(row(R"(alloc_req_slots runs out of memory)"), kRuntimeOom, kRuntime),
    fails(row(R"(Out of memory even after retracting all other requests)"), kRuntimeOom, kRuntime),
    fails(row(R"(chunked_prefill_size must be divisible by page_size)"), kConfigRejected, kContext),
};

}  // namespace

std::span<const Row> sglang_rows() { return kRows; }

}  // namespace oomcast::logs
