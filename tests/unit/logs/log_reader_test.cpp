// Starts are told apart, and what names a start joins it.
#include "tests/unit/logs/log_test.hpp"

namespace oomcast::logs {
namespace {

constexpr const char* kVllmStart =
    "INFO 11-29 10:00:00 [api_server.py:1] vLLM API server version 0.19.0\n"
    "INFO 11-29 10:00:00 [gpu_model_runner.py:1] Model loading took 14.99 GiB memory and 3 "
    "seconds\n";

TEST(LogReader, TwoEnginesInOneFile) {
  const EngineLog log = read(
      "vLLM API server version 0.19.0\n"
      "[2026-11-29 10:00:00 TP0] Load weight begin. avail mem=78.48 GB\n"
      "Model loading took 14.99 GiB memory and 3 seconds\n"
      "[2026-11-29 10:00:00 TP0] Load weight end. avail mem=50.01 GB, mem usage=28.47 GB.\n");
  ASSERT_EQ(log.runs.size(), 2U);
  EXPECT_DOUBLE_EQ(value(log.runs[0], Figure::kWeights), 14.99);
  EXPECT_DOUBLE_EQ(value(log.runs[1], Figure::kWeights, "TP0"), 28.47);
}

TEST(LogReader, RestartsAreSeparate) {
  const EngineLog log =
      read(std::string(kVllmStart) + "No available memory for the cache blocks\n" + kVllmStart);
  ASSERT_EQ(log.runs.size(), 2U);
  EXPECT_NE(log.runs[0].cause(), nullptr);
  EXPECT_EQ(log.runs[1].cause(), nullptr);
  EXPECT_EQ(log.runs[1].first_line, 4);
}

TEST(LogReader, ContainersAreSeparate) {
  const EngineLog log = read(
      "prefill-1  | vLLM API server version 0.19.0\n"
      "decode-1   | vLLM API server version 0.19.0\n"
      "decode-1   | Model loading took 3.77 GiB memory and 3 seconds\n"
      "prefill-1  | Model loading took 14.99 GiB memory and 3 seconds\n"
      "prefill-1  | torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n");
  ASSERT_EQ(log.runs.size(), 2U);
  EXPECT_EQ(log.runs[0].stream, "prefill-1");
  EXPECT_DOUBLE_EQ(value(log.runs[0], Figure::kWeights), 14.99);
  EXPECT_NE(log.runs[0].cause(), nullptr);
  EXPECT_DOUBLE_EQ(value(log.runs[1], Figure::kWeights), 3.77);
  EXPECT_EQ(log.runs[1].cause(), nullptr);
}

TEST(LogReader, AnErrorAloneIsARunOfNoEngine) {
  const EngineRun run = only_run(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
      "capacity of 79.10 GiB of which 1.19 GiB is free.\n");
  EXPECT_FALSE(run.engine);
  ASSERT_NE(run.cause(), nullptr);
  EXPECT_EQ(to_gib(*run.cause()->oom->tried), 2.0);
}

TEST(LogReader, TheSameErrorOfManyProcessesCountsOnce) {
  std::string log = kVllmStart;
  for (int i = 0; i < 5; ++i) {
    log +=
        "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has "
        "a total capacity of 79.10 GiB of which 1.19 GiB is free.\n";
  }
  const EngineRun run = only_run(log);
  ASSERT_EQ(run.failures.size(), 1U);
  EXPECT_EQ(run.failures[0].repeats, 4);
}

TEST(LogReader, NamesBeforeTheFirstLineJoinTheStart) {
  const EngineRun run = only_run(
      "+ CUDA_VISIBLE_DEVICES=0 vllm serve a/b --max-model-len 4096\n"
      "docker image vllm/vllm-openai:v0.18.1\n"
      "config E=128,N=768,device_name=NVIDIA_H100_80GB_HBM3.json\n"
      "Model loading took 14.99 GiB memory and 3 seconds\n");
  EXPECT_EQ(run.text(Text::kLaunchLine).value,
            "CUDA_VISIBLE_DEVICES=0 vllm serve a/b --max-model-len 4096");
  EXPECT_EQ(run.text(Text::kVersion).value, "0.18.1");
  EXPECT_EQ(run.text(Text::kGpu).value, "NVIDIA_H100_80GB_HBM3");
}

TEST(LogReader, PackageListsStartNoEngine) {
  const EngineLog log =
      read("vllm==0.19.0\n[2026-11-29 10:00:00] Load weight begin. avail mem=78.48 GB\n");
  ASSERT_EQ(log.runs.size(), 1U);
  EXPECT_EQ(log.runs[0].engine, launch::Engine::kSglang);
}

TEST(LogReader, StreamsOfServingKeepTheHighestUse) {
  const EngineRun run = only_run(
      std::string(kVllmStart) +
      "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
      "Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 93.1%, Prefix cache hit rate: 0.0%\n"
      "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
      "Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 2.0%, Prefix cache hit rate: 0.0%\n");
  EXPECT_NEAR(value(run, Figure::kKvUsage), 0.931, 1e-12);
  EXPECT_EQ(run.phase(), Phase::kRuntime);
}

}  // namespace
}  // namespace oomcast::logs
