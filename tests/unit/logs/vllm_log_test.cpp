// vLLM's lines as each bracket of versions words them: every figure comes back, with its line.
#include <fmt/format.h>

#include "tests/unit/logs/log_test.hpp"

namespace oomcast::logs {
namespace {

constexpr const char* kPrefix = "(EngineCore_DP0 pid=214) INFO 11-29 10:00:01 [gpu_worker.py:298] ";

struct Figures {
  double total = 79.19;
  double free = 78.62;
  double requested = 71.27;
  double weights = 14.99;
  double activation = 1.89;
  double non_torch = 0.25;
  double graphs = 0.91;
  double estimate = 0.86;
  double kv = 54.14;
};

std::string start(const std::string& version) {
  return fmt::format(
      "(APIServer pid=7) INFO 11-29 10:00:00 [api_server.py:1839] vLLM API server version {}\n"
      "(APIServer pid=7) INFO 11-29 10:00:00 [utils.py:233] non-default args: {{'model_tag': "
      "'meta-llama/Llama-3.1-8B-Instruct', 'model': 'meta-llama/Llama-3.1-8B-Instruct', "
      "'max_model_len': 8192}}\n"
      "(EngineCore_DP0 pid=214) INFO 11-29 10:00:00 [core.py:93] Initializing a V1 LLM engine "
      "(v{}) with config: model='meta-llama/Llama-3.1-8B-Instruct', speculative_config=None, "
      "dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1, quantization=None\n",
      version, version);
}

std::string line(const std::string& text) { return kPrefix + text + "\n"; }

void expect_common(const EngineRun& run, const Figures& f) {
  EXPECT_EQ(run.engine, launch::Engine::kVllm);
  EXPECT_DOUBLE_EQ(value(run, Figure::kWeights, "DP0"), f.weights);
  EXPECT_DOUBLE_EQ(value(run, Figure::kAvailableKv, "DP0"), f.kv);
  EXPECT_DOUBLE_EQ(value(run, Figure::kKvTokens, "DP0"), 443520);
  EXPECT_DOUBLE_EQ(value(run, Figure::kMaxConcurrency, "DP0"), 54.14);
  EXPECT_DOUBLE_EQ(value(run, Figure::kMaxModelLen, "DP0"), 8192);
  EXPECT_DOUBLE_EQ(value(run, Figure::kGraphs, "DP0"), f.graphs);
  EXPECT_EQ(run.phase(), Phase::kRuntime);
  EXPECT_TRUE(run.failures.empty());
}

// One row a bracket of versions, with the wording of 2.6.
struct Bracket {
  const char* version;
  bool two_kv_lines;
  bool consumed;
  bool estimates;
};

class VllmBrackets : public ::testing::TestWithParam<Bracket> {};

TEST_P(VllmBrackets, EveryFigureComesBack) {
  const Bracket bracket = GetParam();
  const Figures f;
  const std::string version = bracket.version;
  std::string log = start(version);
  log += line("Starting to load model meta-llama/Llama-3.1-8B-Instruct...");
  log += version < "0.14"
             ? line(fmt::format("Model loading took {:.4f} GiB and 3.1 seconds", f.weights))
             : line(fmt::format("Model loading took {} GiB memory and 3.1 seconds", f.weights));
  if (bracket.estimates) {
    log += line("Profiling CUDA graph memory: PIECEWISE=51 (largest=512), FULL=35 (largest=256)");
    log += line(fmt::format("Estimated CUDA graph memory: {:.2f} GiB total", f.estimate));
  }
  log += line(fmt::format("Available KV cache memory: {:.2f} GiB", f.kv));
  if (bracket.two_kv_lines) {
    log += line("GPU KV cache size: 443,520 tokens");
    log += line("Maximum concurrency for 8,192 tokens per request: 54.14x");
  } else {
    log += line(
        "GPU KV cache size: 443,520 tokens, Maximum concurrency for 8,192 tokens per "
        "request: 54.14x");
  }
  log += line(fmt::format("Graph capturing finished in 21 secs, took {:.2f} GiB", f.graphs));
  const std::string usage =
      bracket.consumed ? fmt::format(
                             "{} GiB for consumed memory (weights + non-torch), {} GiB for peak "
                             "activation, and {} GiB for CUDAGraph memory",
                             f.weights + f.non_torch, f.activation, f.graphs)
                       : fmt::format(
                             "{} GiB for weight, {} GiB for peak activation, {} GiB for non-torch "
                             "memory, and {} GiB for CUDAGraph memory",
                             f.weights, f.activation, f.non_torch, f.graphs);
  log += line(fmt::format(
      "Free memory on device cuda:0 ({}/{} GiB) on startup. Desired GPU memory utilization is "
      "(0.9, {} GiB). Actual usage is {}. Replace gpu_memory_utilization config with "
      "`--kv-cache-memory=57041731174` (53.12 GiB) to fit into requested memory, or "
      "`--kv-cache-memory=64000000000` (59.6 GiB) to fully utilize gpu memory. Current kv cache "
      "memory in use is {} GiB.",
      f.free, f.total, f.requested, usage, f.kv));
  log += line("init engine (profile, create kv cache, warmup model) took 42.41 seconds");
  log += "(APIServer pid=7) INFO:     Application startup complete.\n";

  const EngineRun run = only_run(log);
  expect_common(run, f);
  EXPECT_EQ(run.text(Text::kVersion).value, bracket.version);
  EXPECT_EQ(run.text(Text::kVersion).line, 3);
  EXPECT_EQ(run.text(Text::kModel).value, "meta-llama/Llama-3.1-8B-Instruct");
  EXPECT_DOUBLE_EQ(value(run, Figure::kTotal, "DP0"), f.total);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeAtStart, "DP0"), f.free);
  EXPECT_DOUBLE_EQ(value(run, Figure::kRequested, "DP0"), f.requested);
  EXPECT_DOUBLE_EQ(value(run, Figure::kUtilization, "DP0"), 0.9);
  EXPECT_DOUBLE_EQ(value(run, Figure::kActivationPeak, "DP0"), f.activation);
  EXPECT_DOUBLE_EQ(value(run, Figure::kKvInUse, "DP0"), f.kv);
  EXPECT_NEAR(value(run, Figure::kKvMemoryAdvice, "DP0"), 57041731174.0 / 1073741824.0, 1e-12);
  if (bracket.consumed) {
    EXPECT_DOUBLE_EQ(value(run, Figure::kConsumed, "DP0"), f.weights + f.non_torch);
  } else {
    EXPECT_DOUBLE_EQ(value(run, Figure::kNonTorch, "DP0"), f.non_torch);
  }
  if (bracket.estimates) {
    EXPECT_DOUBLE_EQ(value(run, Figure::kGraphEstimate, "DP0"), f.estimate);
    EXPECT_DOUBLE_EQ(value(run, Figure::kPiecewiseGraphs, "DP0"), 51);
    EXPECT_DOUBLE_EQ(value(run, Figure::kFullLargest, "DP0"), 256);
  }
  // The wording agrees with the version.
  const Version stated = *parse_version(version);
  EXPECT_TRUE(!run.worded_since || *run.worded_since <= stated);
  EXPECT_TRUE(!run.worded_until || *run.worded_until >= stated);
}

INSTANTIATE_TEST_SUITE_P(
    Versions, VllmBrackets,
    ::testing::Values(Bracket{"0.10.2", true, false, false}, Bracket{"0.12.0", true, false, false},
                      Bracket{"0.17.1", true, false, false}, Bracket{"0.19.0", true, false, true},
                      Bracket{"0.26.0", true, false, true}, Bracket{"0.27.0", true, true, true},
                      Bracket{"0.28.1", false, true, true}, Bracket{"0.33.0", false, true, true}));

TEST(VllmLog, WordingAloneBracketsTheVersion) {
  const EngineRun run = only_run(line("Model loading took 14.99 GiB memory and 3.1 seconds") +
                                 line("Estimated CUDA graph memory: 0.86 GiB total") +
                                 line("GPU KV cache size: 443,520 tokens"));
  EXPECT_EQ(run.text(Text::kVersion).line, 0);
  EXPECT_EQ(run.worded_since, (Version{{0, 18, 0}}));
  EXPECT_EQ(run.worded_until, (Version{{0, 27, 9}}));
}

TEST(VllmLog, OldForms) {
  const EngineRun v06 = only_run(
      "INFO 11-01 10:00:00 model_runner.py:1077] Starting to load model facebook/opt-6.7b...\n"
      "INFO 11-01 10:00:09 model_runner.py:1096] Loading model weights took 12.3999 GB\n"
      "INFO 11-01 10:00:12 worker.py:232] Memory profiling results: duration=2.5 seconds, "
      "total_gpu_memory=79.11GiB, initial_memory_usage=12.9GiB, peak_torch_memory=13.7GiB, "
      "memory_usage_post_profile=13.1GiB, non_torch_memory=0.63GiB, kv_cache_size=56.8GiB, "
      "gpu_memory_utilization=0.90\n"
      "INFO 11-01 10:00:12 gpu_executor.py:113] # GPU blocks: 7270, # CPU blocks: 512\n");
  EXPECT_DOUBLE_EQ(value(v06, Figure::kWeights), 12.3999);
  EXPECT_DOUBLE_EQ(value(v06, Figure::kTotal), 79.11);
  EXPECT_DOUBLE_EQ(value(v06, Figure::kNonTorch), 0.63);
  EXPECT_DOUBLE_EQ(value(v06, Figure::kAvailableKv), 56.8);
  EXPECT_DOUBLE_EQ(value(v06, Figure::kKvBlocks), 7270);
  EXPECT_EQ(v06.text(Text::kModel).value, "facebook/opt-6.7b");

  const EngineRun v08 = only_run(
      "INFO 05-01 10:00:00 [worker.py:267] the current vLLM instance can use total_gpu_memory "
      "(21.99GiB) x gpu_memory_utilization (0.90) = 19.79GiB\n"
      "INFO 05-01 10:00:00 [worker.py:267] model weights take 14.25GiB; non_torch_memory takes "
      "0.07GiB; PyTorch activation peak memory takes 1.42GiB; the rest of the memory reserved for "
      "KV Cache is 4.05GiB.\n");
  EXPECT_DOUBLE_EQ(value(v08, Figure::kRequested), 19.79);
  EXPECT_DOUBLE_EQ(value(v08, Figure::kActivationPeak), 1.42);
  EXPECT_DOUBLE_EQ(value(v08, Figure::kAvailableKv), 4.05);
}

TEST(VllmLog, DebugSplit) {
  const EngineRun run = only_run(
      line("Initial free memory: 78.62 GiB; Requested memory: 0.900000 (util), 71.27 GiB") +
      line("Memory profiling takes 9.01 seconds. Total non KV cache memory: 17.12GiB; torch peak "
           "memory increase: 1.89GiB; non-torch forward increase memory: 0.25GiB; weights memory: "
           "14.99GiB.") +
      line("Free memory after profiling: 63.20 GiB (total), 54.10 GiB (within requested)"));
  EXPECT_DOUBLE_EQ(value(run, Figure::kNonKvTotal, "DP0"), 17.12);
  EXPECT_DOUBLE_EQ(value(run, Figure::kFreeAfterProfile, "DP0"), 63.20);
  EXPECT_DOUBLE_EQ(value(run, Figure::kRequested, "DP0"), 71.27);
  // 71.27 / 0.9
  EXPECT_NEAR(value(run, Figure::kTotal, "DP0"), 79.19, 0.01);
}

TEST(VllmLog, RanksAreKeptApart) {
  std::string log = start("0.19.0");
  for (int rank = 0; rank < 4; ++rank) {
    log += fmt::format(
        "\x1b[1;36m(Worker_PP{}_TP{} pid={})\x1b[0;0m INFO 11-29 10:00:09 [gpu_worker.py:300] "
        "Available KV cache memory: {:.2f} GiB\n",
        rank / 2, rank % 2, 300 + rank, 40.0 + rank);
  }
  const EngineRun run = only_run(log);
  EXPECT_DOUBLE_EQ(value(run, Figure::kAvailableKv, "PP0 TP0"), 40);
  EXPECT_DOUBLE_EQ(value(run, Figure::kAvailableKv, "PP1 TP1"), 43);
  EXPECT_EQ(run.ranks.at(run.deciding_rank()), "PP0 TP0");
}

TEST(VllmLog, Failures) {
  struct Case {
    const char* text;
    FailureKind kind;
    Phase phase;
  };
  const std::vector<Case> cases = {
      {"ValueError: Free memory on device cuda:0 (60.12/79.19 GiB) on startup is less than desired "
       "GPU memory utilization (0.9, 71.27 GiB). Decrease GPU memory utilization",
       FailureKind::kStartupOom, Phase::kContext},
      {"AssertionError: Error in memory profiling. Initial free memory 60.1 GiB, current free "
       "memory 61.2 GiB. This happens when other processes",
       FailureKind::kConfigRejected, Phase::kProfile},
      {"ValueError: No available memory for the cache blocks. Try increasing "
       "`gpu_memory_utilization` when initializing the engine.",
       FailureKind::kKvTooSmall, Phase::kKv},
      {"ValueError: Cannot auto-fit max_model_len: not enough GPU memory available",
       FailureKind::kKvTooSmall, Phase::kKv},
      {"RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy "
       "requests. Please try lowering `max_num_seqs`",
       FailureKind::kStartupOom, Phase::kWarmup},
      {"ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (939). Each decode "
       "sequence requires one",
       FailureKind::kConfigRejected, Phase::kKv},
  };
  for (const Case& one : cases) {
    const EngineRun run = only_run(start("0.19.0") + line(one.text));
    ASSERT_NE(run.cause(), nullptr) << one.text;
    EXPECT_EQ(run.cause()->kind, one.kind) << one.text;
    EXPECT_EQ(run.cause()->phase, one.phase) << one.text;
    EXPECT_EQ(run.cause()->line, 4) << one.text;
  }
}

TEST(VllmLog, NeededAndLongest) {
  const EngineRun run = only_run(line(
      "ValueError: To serve at least one request with the model's max seq len (262144), (36.0 GiB "
      "KV cache is needed, which is larger than the available KV cache memory (6.94 GiB). Based on "
      "the available memory, the estimated maximum model length is 50512. Try increasing"));
  EXPECT_DOUBLE_EQ(value(run, Figure::kKvNeeded, "DP0"), 36);
  EXPECT_DOUBLE_EQ(value(run, Figure::kAvailableKv, "DP0"), 6.94);
  EXPECT_DOUBLE_EQ(value(run, Figure::kMaxModelLen, "DP0"), 262144);
  EXPECT_DOUBLE_EQ(value(run, Figure::kEstimatedMaxModelLen, "DP0"), 50512);
  EXPECT_EQ(run.worded_since, (Version{{0, 22, 0}}));
}

TEST(VllmLog, TheTracebackTellsThePhase) {
  const std::string oom =
      "(EngineCore_DP0 pid=214) ERROR 11-29 [core.py:700] torch.OutOfMemoryError: CUDA out of "
      "memory. Tried to allocate 784.00 MiB. GPU 0 has a total capacity of 31.40 GiB of which "
      "47.06 MiB is free.\n";
  const auto frame = [](const char* function) {
    return fmt::format(
        "(EngineCore_DP0 pid=214) ERROR 11-29 [core.py:700]   File "
        "\"/usr/lib/vllm/worker.py\", line 300, in {}\n",
        function);
  };
  // The profile run also samples; the outermost frame decides.
  const EngineRun profile = only_run(start("0.19.0") + frame("determine_available_memory") +
                                     frame("_dummy_sampler_run") + oom);
  EXPECT_EQ(profile.cause()->phase, Phase::kProfile);
  const EngineRun capture =
      only_run(start("0.19.0") + frame("compile_or_warm_up_model") + frame("capture_model") + oom);
  EXPECT_EQ(capture.cause()->phase, Phase::kCapture);
  EXPECT_EQ(capture.cause()->kind, FailureKind::kStartupOom);
  const EngineRun serving =
      only_run(start("0.19.0") +
               line("init engine (profile, create kv cache, warmup model) took 9 seconds") +
               frame("execute_model") + oom);
  EXPECT_EQ(serving.cause()->kind, FailureKind::kRuntimeOom);
  EXPECT_EQ(serving.cause()->phase, Phase::kRuntime);
}

}  // namespace
}  // namespace oomcast::logs
