// SGLang's lines, both wordings: every figure comes back.
#include <fmt/format.h>

#include "tests/unit/logs/log_test.hpp"

namespace oomcast::logs {
namespace {

std::string line(const std::string& text, const std::string& rank = " TP0") {
  return "[2026-11-29 10:00:00" + rank + "] " + text + "\n";
}

TEST(SglangLog, Old) {
  const EngineRun run = only_run(
      line("server_args=ServerArgs(model_path='Qwen/Qwen3-0.6B', tokenizer_path='Qwen/Qwen3-0.6B', "
           "mem_fraction_static=0.817, tp_size=1)",
           "") +
      line("Init torch distributed begin.") +
      line("Init torch distributed ends. mem usage=0.14 GB") +
      line("Load weight begin. avail mem=15.16 GB") +
      line("Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=13.91 GB, mem "
           "usage=1.25 GB.") +
      line("KV Cache is allocated. #tokens: 104273, K size: 5.57 GB, V size: 5.57 GB") +
      line("Memory pool end. avail mem=2.43 GB") +
      line("Capture cuda graph begin. This can take up to several minutes. avail mem=1.85 GB") +
      line("Capture cuda graph end. Time elapsed: 1.61 s. mem usage=0.11 GB. avail mem=1.74 GB.") +
      line("max_total_num_tokens=104273, chunked_prefill_size=2048, max_prefill_tokens=16384, "
           "max_running_requests=2048, context_len=40960, available_gpu_mem=1.70 GB") +
      line("The server is fired up and ready to roll!", ""));
  EXPECT_EQ(run.engine, launch::Engine::kSglang);
  const std::string rank = "TP0";
  EXPECT_DOUBLE_EQ(value(run, Figure::kContextUse, rank), 0.14);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeAtStart, rank), 15.16);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeAfterLoad, rank), 13.91);
  EXPECT_DOUBLE_EQ(value(run, Figure::kWeights, rank), 1.25);
  EXPECT_NEAR(value(run, Figure::kAvailableKv, rank), 11.14, 1e-9);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeAfterPool, rank), 2.43);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeBeforeCapture, rank), 1.85);
  EXPECT_DOUBLE_EQ(value(run, Figure::kGraphs, rank), 0.11);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeAfterCapture, rank), 1.74);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeWhenReady, rank), 1.70);
  EXPECT_DOUBLE_EQ(value(run, Figure::kKvTokens, rank), 104273);
  EXPECT_DOUBLE_EQ(value(run, Figure::kBatchTokens, rank), 2048);
  EXPECT_DOUBLE_EQ(value(run, Figure::kMaxRunning, rank), 2048);
  EXPECT_DOUBLE_EQ(value(run, Figure::kMaxModelLen, rank), 40960);
  EXPECT_EQ(run.phase(), Phase::kRuntime);
  EXPECT_EQ(run.worded_until, (Version{{0, 5, 8}}));
  EXPECT_TRUE(run.failures.empty());
}

// Hybrid with recurrent state, draft weights and graphs of both kinds.
TEST(SglangLog, New) {
  const EngineRun run = only_run(
      line("Memory baseline taken. mem usage=0.61 GB") +
      line("Load weight begin. avail mem=78.48 GB") +
      line("Load weight end. elapsed=11.20 s, type=Qwen3_8ForCausalLM, avail mem=50.01 GB, mem "
           "usage=28.47 GB.") +
      line("Load weight begin. avail mem=50.01 GB") +
      line("Load weight end. elapsed=1.20 s, type=Qwen3_8ForCausalLMMTP, avail mem=49.50 GB, mem "
           "usage=0.51 GB.") +
      line("Reserving 0.10 GB of the KV budget") +
      line(
          "Mamba Cache is allocated. max_mamba_cache_size: 124, conv_state size: 0.34GB, ssm_state "
          "size: 17.58GB intermediate_ssm_state_cache size: 1.50GB "
          "intermediate_conv_window_cache size: 0.05GB") +
      line("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 330323, K size: 10.08 GB, V "
           "size: 10.08 GB") +
      line("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 330323, K size: 0.63 GB, V "
           "size: 0.63 GB") +
      line("Memory pool end. avail mem=10.40 GB") +
      line("Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail "
           "mem=9.80 GB") +
      line("Capture target decode CUDA graph end. elapsed=5.10 s, mem usage=0.12 GB, avail "
           "mem=9.68 GB.") +
      line("Capture target prefill CUDA graph end. elapsed=5.10 s, mem usage=0.30 GB, avail "
           "mem=9.38 GB.") +
      line("max_total_num_tokens=330323, chunked_prefill_size=8192, max_prefill_tokens=16384, "
           "max_running_requests=32, context_len=262144, available_gpu_mem=8.90 GB"));
  const std::string rank = "TP0";
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeAtStart, rank), 78.48);
  EXPECT_DOUBLE_EQ(value(run, Figure::kWeights, rank), 28.47);
  EXPECT_DOUBLE_EQ(value(run, Figure::kDraftWeights, rank), 0.51);
  EXPECT_DOUBLE_EQ(value(run, Figure::kMultimodalReserve, rank), 0.10);
  EXPECT_DOUBLE_EQ(value(run, Figure::kConvState, rank), 0.34);
  EXPECT_DOUBLE_EQ(value(run, Figure::kSsmState, rank), 17.58);
  EXPECT_NEAR(value(run, Figure::kIntermediateState, rank), 1.55, 1e-9);
  EXPECT_DOUBLE_EQ(value(run, Figure::kStateSlots, rank), 124);
  EXPECT_NEAR(value(run, Figure::kAvailableKv, rank), 20.16, 1e-9);
  EXPECT_NEAR(value(run, Figure::kMoreKv, rank), 1.26, 1e-9);
  EXPECT_NEAR(value(run, Figure::kGraphs, rank), 0.42, 1e-9);
  EXPECT_EQ(run.worded_since, (Version{{0, 5, 9}}));
}

TEST(SglangLog, SlidingWindowPoolsAddUp) {
  const EngineRun run = only_run(
      line("Use sliding window memory pool. full_layer_tokens=375360, swa_layer_tokens=300288") +
      line("KV Cache is allocated. #tokens: 300288, K size: 8.38 GB, V size: 5.59 GB") +
      line("KV Cache is allocated. #tokens: 375360, K size: 4.00 GB, V size: 3.00 GB"));
  EXPECT_DOUBLE_EQ(value(run, Figure::kSwaTokens, "TP0"), 300288);
  EXPECT_DOUBLE_EQ(value(run, Figure::kKvTokens, "TP0"), 375360);
  EXPECT_NEAR(value(run, Figure::kAvailableKv, "TP0"), 20.97, 1e-9);
}

TEST(SglangLog, WithoutMemUsageItFollows) {
  const EngineRun run = only_run(
      line("Load weight begin. avail mem=78.81 GB") +
      line("Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.72 GB"));
  EXPECT_NEAR(value(run, Figure::kWeights, "TP0"), 15.09, 1e-9);
}

TEST(SglangLog, Failures) {
  const std::vector<std::pair<const char*, FailureKind>> cases = {
      {"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current "
       "value: mem_fraction_static=0.5",
       FailureKind::kKvTooSmall},
      {"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current "
       "value: self.server_args.mem_fraction_static=0.62",
       FailureKind::kKvTooSmall},
      {"ValueError: Loaded weights leave no GPU memory for the KV cache under "
       "--mem-fraction-static=0.3. Raise --mem-fraction-static above 0.412",
       FailureKind::kKvTooSmall},
      {"RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any "
       "requests",
       FailureKind::kKvTooSmall},
      {"Exception: Capture cuda graph failed: CUDA out of memory. Possible solutions: 1. set "
       "--mem-fraction-static to a smaller value",
       FailureKind::kStartupOom},
      {"RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other "
       "processes.",
       FailureKind::kConfigRejected},
      {"RuntimeError: Decode out of memory. Try to lower your batch size.",
       FailureKind::kRuntimeOom},
  };
  for (const auto& [text, kind] : cases) {
    const EngineRun run = only_run(line(text));
    ASSERT_NE(run.cause(), nullptr) << text;
    EXPECT_EQ(run.cause()->kind, kind) << text;
  }
}

}  // namespace
}  // namespace oomcast::logs
