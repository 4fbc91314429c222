// TensorRT-LLM's lines, both backends: every figure comes back.
#include "tests/unit/logs/log_test.hpp"

namespace oomcast::logs {
namespace {

TEST(TrtllmLog, PyTorchBackend) {
  const EngineRun run = only_run(
      "[TensorRT-LLM] TensorRT-LLM version: 1.2.0\n"
      "[11/29/2026-10:00:00] [TRT-LLM] [I] Memory used after loading model weights (inside torch) "
      "in "
      "memory usage profiling: 15.21 GiB\n"
      "[11/29/2026-10:00:00] [TRT-LLM] [I] Memory used after loading model weights (outside torch) "
      "in memory usage profiling: 1.10 GiB\n"
      "[11/29/2026-10:00:00] [TRT-LLM] [I] Memory dynamically allocated during inference (inside "
      "torch) in memory usage profiling: 1.75 GiB\n"
      "[11/29/2026-10:00:00] [TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) "
      "in "
      "memory usage profiling: 2.02 GiB\n"
      "[11/29/2026-10:00:00] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + "
      "non-torch): 35.48 GiB, available KV cache memory when calculating max tokens: 54.20 GiB, "
      "fraction is set 0.9, kv size per token is 131072 bytes/token, device total memory 79.19 "
      "GiB, "
      "temporary kv cache memory during profiling 16.50 GiB\n"
      "[11/29/2026-10:00:00] [TRT-LLM] [I] Estimated max memory in KV cache : 54.20 GiB\n"
      "[TensorRT-LLM][INFO] Number of tokens per block: 32.\n"
      "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.50 GiB for max tokens in paged KV cache "
      "(135168).\n"
      "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 54.20 GiB for max tokens in paged KV cache "
      "(443968).\n"
      "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool for windowSize 8192: 13874\n"
      "[11/29/2026-10:00:00] [TRT-LLM] [I] Creating CUDA graph instances for 34 batch sizes.\n"
      "[11/29/2026-10:00:00] [TRT-LLM] [I] Run generation-only CUDA graph warmup for batch "
      "size=128, "
      "draft_len=0, max_seq_len=8192\n");
  EXPECT_EQ(run.engine, launch::Engine::kTrtllm);
  EXPECT_EQ(run.text(Text::kVersion).value, "1.2.0");
  EXPECT_DOUBLE_EQ(value(run, Figure::kWeights), 15.21);
  EXPECT_DOUBLE_EQ(value(run, Figure::kWeightsOutsideTorch), 1.10);
  EXPECT_DOUBLE_EQ(value(run, Figure::kActivationPeak), 1.75);
  EXPECT_DOUBLE_EQ(value(run, Figure::kNonTorch), 2.02);
  EXPECT_DOUBLE_EQ(value(run, Figure::kPeak), 35.48);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeForKv), 54.20);
  EXPECT_DOUBLE_EQ(value(run, Figure::kUtilization), 0.9);
  EXPECT_DOUBLE_EQ(value(run, Figure::kKvPerToken) * 1073741824.0, 131072);
  EXPECT_DOUBLE_EQ(value(run, Figure::kTotal), 79.19);
  EXPECT_DOUBLE_EQ(value(run, Figure::kTemporaryKv), 16.50);
  // The real pool comes after the dry run's.
  EXPECT_DOUBLE_EQ(value(run, Figure::kAvailableKv), 54.20);
  EXPECT_DOUBLE_EQ(value(run, Figure::kKvTokens), 443968);
  EXPECT_DOUBLE_EQ(value(run, Figure::kBlockSize), 32);
  EXPECT_DOUBLE_EQ(value(run, Figure::kKvBlocks), 13874);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFullGraphs), 34);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFullLargest), 128);
  EXPECT_TRUE(run.failures.empty());
}

TEST(TrtllmLog, TensorRtBackend) {
  const EngineRun run = only_run(
      "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: "
      "39.39 "
      "GiB, available: 21.89 GiB\n"
      "[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 631\n"
      "[TensorRT-LLM][INFO] Number of tokens per block: 64.\n");
  EXPECT_DOUBLE_EQ(value(run, Figure::kTotal), 39.39);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeForKv), 21.89);
  EXPECT_DOUBLE_EQ(value(run, Figure::kKvBlocks), 631);
  EXPECT_DOUBLE_EQ(value(run, Figure::kKvTokens), 631 * 64);
}

TEST(TrtllmLog, StageThatCouldNotBeMade) {
  const EngineRun run = only_run(
      "[TRT-LLM] [RANK 3] [E] Executor creation failed due to insufficient GPU memory.\n"
      "The following component could not be created: KV cache\n"
      "Total GPU memory (GiB): 140.06\n"
      "Free GPU memory before component creation attempt (GiB): 108.86\n"
      "Previously created components and free GPU memory before/after creation (GiB):\n"
      "Model: 139.55 / 110.70\n");
  ASSERT_NE(run.cause(), nullptr);
  EXPECT_EQ(run.cause()->kind, FailureKind::kStartupOom);
  EXPECT_EQ(run.ranks.at(run.cause()->rank), "rank 3");
  EXPECT_EQ(run.text(Text::kStage).value, "KV cache");
  EXPECT_DOUBLE_EQ(value(run, Figure::kTotal), 140.06);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeBeforeStage), 108.86);
  EXPECT_NEAR(value(run, Figure::kWeights), 28.85, 1e-9);
}

}  // namespace
}  // namespace oomcast::logs
