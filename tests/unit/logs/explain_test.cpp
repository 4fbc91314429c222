// Logs explained: the waterfall adds up, a printed plan comes back with nothing unexplained,
// failures are named and answered.
#include "sim/run/explain.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"
#include "sim/logs/log_reader.hpp"
#include "tests/unit/logs/printed_log.hpp"

namespace oomcast {
namespace {

OrderedJson explained(const std::string& log, const ExplainOptions& options = {}) {
  return explain_json(logs::read_log_text(log, "test.log"), options);
}

OrderedJson only(const std::string& log, const ExplainOptions& options = {}) {
  const OrderedJson json = explained(log, options);
  EXPECT_EQ(json["engines"].size(), 1U);
  return json["engines"].at(0);
}

struct Choice {
  std::string launch;
  std::string gpu;
  std::string version;
};

Choice random_choice(RandomStream& random) {
  constexpr std::array kModels = {"meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B",
                                  "Qwen/Qwen2.5-7B-Instruct", "google/gemma-3-1b-it",
                                  "Qwen/Qwen3-0.6B"};
  constexpr std::array kCards = {"NVIDIA H100 80GB HBM3", "NVIDIA L40S", "NVIDIA H200",
                                 "NVIDIA A100-SXM4-80GB"};
  constexpr std::array kVersions = {"0.12.0", "0.17.0", "0.19.0", "0.20.0",
                                    "0.25.0", "0.27.0", "0.33.0"};
  const auto pick = [&random](const auto& list) { return list[random() % list.size()]; };
  Choice choice{
      fmt::format("vllm serve {} --max-model-len {}", pick(kModels), 1024 << (random() % 4)),
      pick(kCards), pick(kVersions)};
  if (random() % 2 == 0) {
    choice.launch += fmt::format(" --max-num-seqs {}", 16 << (random() % 6));
  }
  if (random() % 3 == 0) {
    choice.launch += " --enforce-eager";
  }
  if (random() % 3 == 0) {
    choice.launch += fmt::format(" --gpu-memory-utilization 0.{}", 70 + random() % 25);
  }
  return choice;
}

void expect_same(const OrderedJson& engine, const char* figure) {
  if (engine["predicted"].contains(figure)) {
    ASSERT_TRUE(engine["logged"].contains(figure)) << figure;
    // Two digits of GiB are printed, and the card's total of them is what the prediction starts
    // from.
    const double predicted = engine["predicted"][figure].get<double>();
    EXPECT_NEAR(engine["logged"][figure].get<double>(), predicted,
                std::max(0.0051, predicted * 1e-4))
        << figure;
  }
}

TEST(Explain, APrintedPlanComesBackWithNothingUnexplained) {
  RandomStream random = random_stream(4, "printed plans");
  for (int round = 0; round < 24; ++round) {
    const Choice choice = random_choice(random);
    SCOPED_TRACE(choice.launch + " on " + choice.gpu + ", " + choice.version);
    const Plan plan = plan_of(choice.launch, choice.gpu, choice.version);
    ASSERT_TRUE(plan.report().weights) << "choose cards on which the model loads";
    const OrderedJson engine = only(printed_vllm_log(plan, choice.launch));
    ASSERT_TRUE(engine["not_predicted"].is_null()) << engine["not_predicted"];
    EXPECT_EQ(engine["engine_version"]["value"], choice.version);
    EXPECT_EQ(engine["gpu"]["value"], plan.deployment().gpu.name);
    for (const char* figure :
         {"total_gib", "weights_gib", "activation_peak_gib", "non_torch_gib", "consumed_gib",
          "available_kv_gib", "kv_tokens", "max_concurrency"}) {
      expect_same(engine, figure);
    }
    const OrderedJson& flow = engine["waterfall"];
    ASSERT_FALSE(flow["unexplained_gib"].is_null());
    EXPECT_LE(std::abs(flow["unexplained_gib"].get<double>()),
              flow["rounding_gib"].get<double>() + 1e-6);
    EXPECT_NEAR(flow["left"]["predicted_gib"].get<double>(),
                flow["pool"]["predicted_gib"].get<double>(), 2e-6);
    EXPECT_EQ(engine["outcome"]["fits"], plan.outcome().fits());
    EXPECT_EQ(engine["predicted_outcome"], name_of(plan.outcome().kind));
  }
}

TEST(Explain, SglangOnPaper) {
  const OrderedJson engine = only(
      "[2026-11-29 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-14B', tp_size=4, "
      "mem_fraction_static=0.8)\n"
      "[2026-11-29 10:00:00 TP0] Load weight begin. avail mem=23.08 GB\n"
      "[2026-11-29 10:00:00 TP0] Load weight end. type=Qwen3ForCausalLM, avail mem=16.00 GB, mem "
      "usage=7.08 GB.\n"
      "[2026-11-29 10:00:00 TP0] KV Cache is allocated. #tokens: 298447, K size: 5.69 GB, V size: "
      "5.69 GB\n");
  // 23.08 - 7.08 - 23.08 x 0.2 = 11.384
  EXPECT_NEAR(engine["waterfall"]["left"]["logged_gib"].get<double>(), 11.384, 1e-5);
  EXPECT_NEAR(engine["waterfall"]["pool"]["logged_gib"].get<double>(), 11.38, 1e-5);
  EXPECT_NEAR(engine["waterfall"]["unexplained_gib"].get<double>(), -0.004, 1e-5);
  EXPECT_EQ(engine["model"]["value"], "Qwen/Qwen3-14B");
  EXPECT_FALSE(engine["missing"].empty());  // the card
}

TEST(Explain, TrtllmOnPaper) {
  const OrderedJson engine = only(
      "[TensorRT-LLM] TensorRT-LLM version: 1.2.0\n"
      "[TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 35.48 GiB, "
      "available KV cache memory when calculating max tokens: 54.19 GiB, fraction is set 0.9, kv "
      "size "
      "per token is 131072 bytes/token, device total memory 79.19 GiB, temporary kv cache memory "
      "during profiling 16.50 GiB\n"
      "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 54.19 GiB for max tokens in paged KV cache "
      "(443904).\n");
  // (79.19 - 35.48 + 16.5) x 0.9 = 54.189
  EXPECT_NEAR(engine["waterfall"]["left"]["logged_gib"].get<double>(), 54.189, 1e-5);
  EXPECT_LE(std::abs(engine["waterfall"]["unexplained_gib"].get<double>()), 0.0011);
}

TEST(Explain, OutOfMemoryAloneIsArithmetic) {
  const OrderedJson engine = only(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
      "capacity of 79.10 GiB of which 1.19 GiB is free. Process 4711 has 10.50 GiB memory in use. "
      "Including non-PyTorch memory, this process has 67.41 GiB memory in use. Of the allocated "
      "memory "
      "60.00 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but "
      "unallocated.\n");
  const OrderedJson& outcome = engine["outcome"];
  EXPECT_EQ(outcome["kind"], "startup_oom");
  EXPECT_NEAR(outcome["short_by_gib"].get<double>(), 0.81, 1e-6);
  EXPECT_NEAR(outcome["oom"]["other_processes_gib"].get<double>(), 10.5, 1e-6);
  EXPECT_NE(outcome["reason"].get<std::string>().find("other processes"), std::string::npos);
  EXPECT_TRUE(engine["engine"].is_null());
  EXPECT_TRUE(shows_failure({{"engines", {engine}}}));
}

TEST(Explain, ATooLongContextIsAnsweredWithOneThatFits) {
  const Choice choice{"vllm serve Qwen/Qwen3-8B --max-model-len 40960", "NVIDIA L4", "0.19.0"};
  const Plan plan = plan_of(choice.launch, choice.gpu, choice.version);
  ASSERT_EQ(plan.outcome().kind, OutcomeKind::kKvTooSmall);
  const OrderedJson engine = only(printed_vllm_log(plan, choice.launch));
  const OrderedJson& outcome = engine["outcome"];
  EXPECT_EQ(outcome["kind"], "kv_too_small");
  EXPECT_EQ(outcome["class"], "kv.pool");
  EXPECT_NEAR(outcome["short_by_gib"].get<double>(), to_gib(plan.outcome().short_by), 0.011);
  ASSERT_FALSE(outcome["fixes"].empty());
  EXPECT_NE(outcome["fixes"][0]["change"].get<std::string>().find("--max-model-len"),
            std::string::npos);
}

TEST(Explain, ChangesStartFromWhatTheLogMeasured) {
  const OrderedJson engine = only(
      "vLLM API server version 0.19.0\n"
      "non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 40960}\n"
      "device_name=NVIDIA_L4\n"
      "Model loading took 15.27 GiB memory and 3.1 seconds\n"
      "Available KV cache memory: 2.95 GiB\n"
      "ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB "
      "KV "
      "cache is needed, which is larger than the available KV cache memory (2.95 GiB). Based on "
      "the "
      "available memory, the estimated maximum model length is 21488.\n");
  const std::string change = engine["outcome"]["fixes"].at(0)["change"];
  // The engine's own estimate, down to whole 1024 tokens.
  EXPECT_EQ(change, "--max-model-len 20480");
}

TEST(Explain, FragmentsAndWhatTheyLeave) {
  std::string log =
      printed_vllm_log(plan_of("vllm serve Qwen/Qwen3-8B --max-model-len 8192", "H100", "0.19.0"),
                       "vllm serve Qwen/Qwen3-8B --max-model-len 8192");
  log +=
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 0 has a total "
      "capacity of 79.19 GiB of which 551.94 MiB is free. Including non-PyTorch memory, this "
      "process "
      "has 78.64 GiB memory in use. Of the allocated memory 74.12 GiB is allocated by PyTorch, and "
      "2.14 GiB is reserved by PyTorch but unallocated.\n";
  const OrderedJson outcome = only(log)["outcome"];
  EXPECT_EQ(outcome["kind"], "runtime_oom");
  EXPECT_EQ(outcome["phase"], "runtime");
  ASSERT_EQ(outcome["fixes"].size(), 2U);
  EXPECT_EQ(outcome["fixes"][0]["change"], "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
  // 0.9 less 234 MiB of 79.19 GiB, down to a hundredth
  EXPECT_EQ(outcome["fixes"][1]["change"], "--gpu-memory-utilization 0.89");
}

TEST(Explain, WhatIsMissingIsSaid) {
  const OrderedJson engine = only("Available KV cache memory: 8.11 GiB\n");
  EXPECT_TRUE(engine["predicted"].is_null());
  ASSERT_EQ(engine["missing"].size(), 2U);
  EXPECT_NE(engine["not_predicted"].get<std::string>().find("--gpu"), std::string::npos);
  EXPECT_FALSE(explain_text(explained("Available KV cache memory: 8.11 GiB\n")).empty());
}

TEST(Explain, OptionsWin) {
  ExplainOptions options;
  options.launch_line = "vllm serve Qwen/Qwen3-8B --max-model-len 8192";
  options.gpu = "H100";
  options.engine_version = "0.19.0";
  const OrderedJson engine = only("Available KV cache memory: 48.11 GiB\n", options);
  EXPECT_TRUE(engine["not_predicted"].is_null()) << engine["not_predicted"];
  EXPECT_EQ(engine["model"]["value"], "Qwen/Qwen3-8B");
  options.gpu = "H1000";
  EXPECT_THROW(only("Available KV cache memory: 48.11 GiB\n", options), ConfigError);
  options.gpu = "H100";
  options.launch_line = "vllm serve Qwen/Qwen3-8B --max-model-lenn 8192";
  EXPECT_THROW(only("Available KV cache memory: 48.11 GiB\n", options), ConfigError);
}

TEST(Explain, FlagsOfTheLogMakeTheLaunchLine) {
  const OrderedJson engine = only(
      "vLLM API server version 0.19.0\n"
      "non-default args: {'model_tag': '/models/Qwen3-8B/', 'model': '/models/Qwen3-8B/', "
      "'max_model_len': 8192, 'enforce_eager': True, 'gpu_memory_utilization': 0.85, 'port': 9000, "
      "'no_such_flag': 3}\n"
      "device_name=NVIDIA_H100_80GB_HBM3\n"
      "Model loading took 15.27 GiB memory and 3 seconds\n");
  const std::string line = engine["launch"]["value"];
  for (const char* words : {"Qwen3-8B", "--max-model-len '8192'", "--enforce-eager",
                            "--gpu-memory-utilization '0.85'"}) {
    EXPECT_NE(line.find(words), std::string::npos) << words << " in " << line;
  }
  EXPECT_EQ(line.find("no-such-flag"), std::string::npos);
  EXPECT_TRUE(engine["not_predicted"].is_null()) << engine["not_predicted"];
  EXPECT_EQ(engine["gpu"]["value"], "NVIDIA H100 80GB HBM3");
}

}  // namespace
}  // namespace oomcast
