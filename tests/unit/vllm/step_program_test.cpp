// What a step's tensors add up to, on paper (facts: vLLM 3.2-3.4, vLLM startup 1, 12-14).
#include "sim/engines/vllm/step_program.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "sim/engines/vllm/resident.hpp"
#include "sim/engines/vllm/step_peaks.hpp"
#include "sim/run/plan.hpp"

namespace oomcast::vllm {
namespace {

Deployment deployment(const std::string& line, const std::string& version = "0.19.0",
                      const std::string& gpu = "H100-80GB") {
  DeploymentInput input;
  input.launch_line = "vllm serve " + line;
  input.gpu = gpu;
  input.engine_version = version;
  return std::move(*resolve_input(input).as<vllm::Deployment>());
}

Bytes forward_peak(const Deployment& of, std::int64_t tokens, Execution execution) {
  const opgraph::Program program(step_graph(
      of, 0,
      {.execution = execution, .sampling = Sampling::kNone, .attention = AttentionRun::kSkipped}));
  return program.peak({tokens, 1, 0}).bytes;
}

// H 4096, I 14336, 2 B: in eager mode 3I + 3H a token (the activation, with the embeddings, the
// previous layer's output and the attention projection alive).
TEST(StepProgram, EagerLlamaHoldsThreeWidthsAndThreeHidden) {
  const Deployment llama = deployment("meta-llama/Llama-3.1-8B-Instruct --enforce-eager");
  EXPECT_EQ(forward_peak(llama, 16384, Execution::kEager), kMiB * (1344 + 384));
}

// Qwen's MLP names gate_up until it returns, so the output is made beside it: one hidden more.
TEST(StepProgram, EagerQwenHoldsOneHiddenMore) {
  const Deployment qwen = deployment("Qwen/Qwen3-8B --enforce-eager");
  EXPECT_EQ(forward_peak(qwen, 8192, Execution::kEager),
            Bytes{std::int64_t{8192} * 2 * (3 * 12288 + 4 * 4096)});
}

// A delta net of Qwen3-Next, whose projection alternates by head: q, k, v, z (12288 wide), copies
// of v, z, q and k, the three joined (8192), its output and the normed one, decays of 2 x 32; five
// hidden sizes (residual, its predecessor, the layer before, normed, the attention's buffer).
// Recorded: 1679818752 B beside the experts' workspace.
TEST(StepProgram, DeltaNetsCopyTheirPartsIntoOrder) {
  const Deployment next = deployment("Qwen/Qwen3-Next-80B-A3B-Instruct --enforce-eager");
  constexpr std::int64_t kWidth = 12288 + 2 * 4096 + 2 * 2048 + 8192 + 2 * 4096 + 2 * 32 + 5 * 2048;
  EXPECT_EQ(forward_peak(next, 16384, Execution::kEager), Bytes{std::int64_t{16384} * 2 * kWidth});
}

// Compiled: gate_up, activation, attention output, residual in and out. Under tensor parallelism
// width and attention output are a rank's, hidden sizes whole: there the next layer's norm is the
// highest (attention output, residual in, the sum with the attention, the MLP's sum, the new
// residual and its norm).
TEST(StepProgram, CompiledPiecesHoldTheirInputs) {
  EXPECT_EQ(forward_peak(deployment("Qwen/Qwen3-8B"), 8192, Execution::kCompiled),
            Bytes{std::int64_t{8192} * 2 * (3 * 12288 + 3 * 4096)});
  EXPECT_EQ(forward_peak(deployment("meta-llama/Llama-3.3-70B-Instruct -tp 4 --max-model-len 8192"),
                         8192, Execution::kCompiled),
            Bytes{std::int64_t{8192} * 2 * (2048 + 5 * 8192)});
}

// Rotated queries of 4096 fit the buffer of the normed input. Before PyTorch 2.14 the compiler
// takes it only beside an MLP's products, which experts' pieces and the first piece lack (recorded:
// 4 layers of Mixtral-8x7B hold 14357102592 B after profiling, else 46 MiB more), or where as many
// keys rotate in the same kernel.
TEST(StepProgram, BuffersAreTakenAgainBesideAnMlp) {
  const auto made = [](const std::string& line, const std::string& version) {
    const opgraph::Program program(step_graph(
        deployment(line, version), 0,
        {.execution = Execution::kCompiled, .sampling = Sampling::kNone, .first_run = true}));
    std::map<std::string, int> counts;
    for (const auto& step : program.steps()) {
      for (const opgraph::TensorId tensor : step.made) {
        ++counts[program.graph().info(tensor).name];
      }
    }
    return std::array{counts["rotated q"], counts["attention output"], counts["rotated k"]};
  };
  using Counts = std::array<int, 3>;
  EXPECT_EQ(made("mistralai/Mistral-7B-v0.1", "0.19.0")[0], 1);
  const Counts moe = made("mistralai/Mixtral-8x7B-v0.1", "0.19.0");
  EXPECT_GT(moe[2], 1);
  EXPECT_EQ(moe, (Counts{moe[2], moe[2], moe[2]}));
  EXPECT_EQ(made("mistralai/Mixtral-8x7B-v0.1", "0.33.0")[0], 0);
  const Counts together = made("meta-llama/Llama-2-7b-hf", "0.19.0");
  EXPECT_EQ(together[0], 0);
}

// Recorded on one of two ranks of Qwen3-0.6B: the rank's part of the embedding goes once it is
// summed, the activation before the MLP's sum is made.
TEST(StepProgram, SumsOverRanksFollowWhatTheyFree) {
  const opgraph::Program program(
      step_graph(deployment("Qwen/Qwen3-8B -tp 2"), 0,
                 {.execution = Execution::kCompiled, .sampling = Sampling::kNone}));
  const opgraph::StepShape shape{8192, 1, 0};
  const auto beside = [&](const std::string& scope) {
    const auto sum = program.peak_among(
        shape, [&](const auto& op) { return op.name == "all_reduce" && op.scope == scope; });
    std::map<std::string, int> alive;
    for (const opgraph::LiveTensor& tensor : program.live_set(sum->op, shape).tensors) {
      ++alive[tensor.name];
    }
    return alive;
  };
  auto embedding = beside("embedding");
  EXPECT_EQ(embedding["embeddings"] + embedding["embeddings, reduced"], 2);
  EXPECT_EQ(beside("layer 0")["activation output"], 0);
}

// Gemma's last norm adds in fp32 as those before it do, and keeps no sum (recorded: else Gemma 3's
// first compiled run keeps 1.25 GiB more in one block's segment).
TEST(StepProgram, CompiledSandwichesAddInFp32ToTheEnd) {
  const Deployment gemma = deployment("google/gemma-3-27b-it");
  const opgraph::Program program(
      step_graph(gemma, 0, {.execution = Execution::kCompiled, .sampling = Sampling::kNone}));
  const opgraph::StepShape shape{8192, 1, 0};
  const auto last =
      program.peak_among(shape, [](const auto& op) { return op.name == "final norm"; });
  ASSERT_TRUE(last);
  Bytes sum;
  for (const opgraph::LiveTensor& tensor : program.live_set(last->op, shape).tensors) {
    sum += tensor.name == "sum in fp32" ? tensor.bytes : Bytes{0};
  }
  EXPECT_EQ(sum, Bytes{8192LL * 5376 * 4});
}

// u = R x V x 4: logits 0.5, fp32 1, probabilities 1, noise 1; T x H and 2 x R x H of hidden
// states; the Triton buffer 132 x V x 4; cuBLAS 32 MiB.
TEST(StepProgram, SamplerOfTheFirstRunner) {
  const Deployment llama = deployment("meta-llama/Llama-3.1-8B-Instruct --enforce-eager");
  const opgraph::Program program(step_graph(llama, 0, profile_kind(llama, {})));
  const std::int64_t unit = std::int64_t{1024} * 128256 * 4;
  EXPECT_EQ(
      program.peak({8192, 1024, 1024}).bytes,
      Bytes{unit * 7 / 2 + std::int64_t{132} * 128256 * 4 + 8192 * 4096 * 2 + 2 * 1024 * 4096 * 2} +
          kMiB * 32);
}

// With drafts the first runner checks one a row besides: 7.5 u (logits of both 1, those after
// drafts 0.5, their copy 1, the drafts' fp32 1, a copy of it 1, probabilities 1, noise 1, its
// inverse 1), less where copy and inverse are not made; recorded with 0.19 for 8 layers of
// Qwen3.5-4B: 3.87 GiB more.
TEST(StepProgram, DraftsAreCheckedInTheFirstRunnersProfile) {
  const auto units = [](const std::string& version, bool drafts) {
    const Deployment of = deployment(
        std::string("meta-llama/Llama-3.1-8B-Instruct --enforce-eager") +
            (drafts ? R"( --speculative-config '{"method":"ngram","num_speculative_tokens":4}')"
                    : ""),
        version);
    const opgraph::Program program(step_graph(of, 0, profile_kind(of, {})));
    Bytes sum;
    const opgraph::StepShape shape{1024, 1024, 1024};
    for (const opgraph::LiveTensor& tensor :
         program.live_set(program.peak(shape).op, shape).tensors) {
      sum += tensor.leaf == Leaf::kRuntimeLogits ? tensor.bytes : Bytes{0};
    }
    return static_cast<double>(sum.count()) / (1024.0 * 128256 * 4);
  };
  EXPECT_DOUBLE_EQ(units("0.19.0", false), 3.5);
  EXPECT_DOUBLE_EQ(units("0.19.0", true), 7.5);
}

// 128 experts of 768 x 2048, 8 a token, in 16 bits: on B200 trtllm-gen's call holds I for each of
// two steps and H for each padded row, and nothing stays; Triton's workspaces stay.
TEST(StepProgram, BlackwellRunsExpertsInOneCall) {
  const auto of_experts = [](const Deployment& of, std::int64_t tokens) {
    const opgraph::Program program(step_graph(of, 0, profile_kind(of, {})));
    const opgraph::StepShape shape{tokens, 1, 1};
    const auto peak =
        program.peak_among(shape, [](const auto& op) { return op.name == "fused experts"; });
    Bytes sum;
    for (const opgraph::LiveTensor& tensor : program.live_set(peak->op, shape).tensors) {
      sum += tensor.leaf == Leaf::kWorkspaceMoe ? tensor.bytes : Bytes{0};
    }
    return sum;
  };
  const std::string line = "Qwen/Qwen3-30B-A3B --enforce-eager --max-num-batched-tokens 1024 ";
  const Deployment b200 = deployment(line, "0.20.0", "B200");
  EXPECT_EQ(of_experts(b200, 1024), Bytes{(1024LL * 8 + 128 * 127) * (2 * 768 + 2048) * 2});
  const models::FfnSpec& ffn = b200.model->layer(0).ffn;
  EXPECT_EQ(expert_workspace(b200, ffn, Tokens{1024}), Bytes{0});
  EXPECT_EQ(shared_workspace(b200), Bytes{0});
  for (const Deployment& triton :
       {deployment(line, "0.19.0", "B200"), deployment(line, "0.20.0", "H100-80GB")}) {
    EXPECT_EQ(of_experts(triton, 1024), expert_workspace(triton, ffn, Tokens{1024}));
    EXPECT_EQ(shared_workspace(triton), expert_workspace(triton, ffn, Tokens{1024}));
  }
}

// gpt-oss on a GeForce: Marlin pads hidden sizes to 256, CUTLASS to 128; Triton, from 0.32 on, not.
TEST(StepProgram, Mxfp4ExpertsOnGeForce) {
  const auto kernel = [](const std::string& version) {
    const Deployment of = deployment("openai/gpt-oss-20b", version, "RTX5090");
    return std::pair{expert_kernel(of), fp4_experts(of).hidden_multiple};
  };
  using kernels::ExpertKernel;
  EXPECT_EQ(kernel("0.21.0"), (std::pair{ExpertKernel::kMarlin, std::int64_t{256}}));
  EXPECT_EQ(kernel("0.22.0"), (std::pair{ExpertKernel::kFlashInferCutlass, std::int64_t{128}}));
  EXPECT_EQ(kernel("0.32.0"), (std::pair{ExpertKernel::kGptOssTriton, std::int64_t{1}}));
}

// A model with images gets embeddings from the runner's buffer, made outside what is compiled.
TEST(StepProgram, ImagesKeepTheEmbeddingOutOfTheCompiledPieces) {
  const std::string line = "Qwen/Qwen3.5-4B --max-model-len 8192 ";
  const Deployment images = deployment(line);
  const Deployment text = deployment(line + "--language-model-only");
  const auto compiling = [](const Deployment& of) {
    return opgraph::Program(compile_graph(of, {})).peak({8192, 1, 0}).bytes;
  };
  // 248,320 x 2560 in 16 bits and two batches beside them.
  EXPECT_EQ(compiling(text), Bytes{(248'320LL + 2 * 8192) * 2560 * 2});
  EXPECT_EQ(compiling(images), Bytes{0});
}

// Up to 0.16 all rows are sorted: 9.5 u.
TEST(StepProgram, SamplerThatSorts) {
  const Deployment llama = deployment("meta-llama/Llama-3.1-8B-Instruct --enforce-eager", "0.16.0");
  const opgraph::Program program(step_graph(llama, 0, profile_kind(llama, {})));
  const std::int64_t unit = std::int64_t{1024} * 128256 * 4;
  const auto peak =
      program.peak_among({8192, 1024, 1024}, [](const auto& op) { return op.scope == "sampler"; });
  ASSERT_TRUE(peak);
  Bytes logits;
  for (const opgraph::LiveTensor& tensor : program.live_set(peak->op, {8192, 1024, 1024}).tensors) {
    logits += tensor.leaf == Leaf::kRuntimeLogits ? tensor.bytes : Bytes{0};
  }
  EXPECT_EQ(logits, Bytes{unit * 19 / 2});
}

// M x k x (max(I, H) + max(2I, H)) x 2 B, made once and kept.
TEST(StepProgram, ExpertWorkspaceIsKept) {
  const Deployment moe = deployment("Qwen/Qwen3-30B-A3B --enforce-eager");
  EXPECT_EQ(expert_workspace(moe, moe.model->layer(0).ffn, Tokens{16384}), kMiB * 1024);
  const opgraph::OpGraph first = step_graph(moe, 0, profile_kind(moe, {}));
  const opgraph::OpGraph later =
      step_graph(moe, 0, {.execution = Execution::kEager, .sampling = Sampling::kGreedy});
  const auto workspaces = [](const opgraph::OpGraph& graph) {
    int found = 0;
    for (std::uint32_t i = 0; i < graph.tensor_count(); ++i) {
      found += graph.info(opgraph::TensorId{i}).leaf == Leaf::kWorkspaceMoe ? 1 : 0;
    }
    return found;
  };
  EXPECT_EQ(workspaces(first), 1);
  EXPECT_EQ(workspaces(later), 0);
}

// 32 splits x 128 tokens x 32 heads x (128 + 1) x 4 B, and the plain statistics.
// DeepSeek V4, T 8192: 4 streams of H 4096 (256 MiB), one mixed (64), the attention's output of 64
// heads x 512 (512), latents (16), values and scores of overlapping entries (80), queries padded to
// 64 heads (512), the indexer's in 8 bits (64) and its largest logits (512).
TEST(StepProgram, HyperConnectionsHoldStreamsAndPaddedHeads) {
  DeploymentInput input;
  input.launch_line =
      "vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8 --max-num-batched-tokens 8192 "
      "--max-model-len 1048576";
  input.model_config =
      std::string(OOMCAST_TEST_DATA) + "/models/configs/deepseek-ai__DeepSeek-V4-Flash.json";
  input.gpu = "B200";
  input.engine_version = "0.25.0";
  auto resolved = resolve_input(input);
  const Deployment& flash = *resolved.as<vllm::Deployment>();
  EXPECT_EQ(forward_peak(flash, 8192, Execution::kCompiled),
            kMiB * (256 + 64 + 512 + 16 + 80 + 512 + 64 + 512));
  // Eager Python names the streams and the output of the layer before besides.
  EXPECT_EQ(forward_peak(flash, 8192, Execution::kEager),
            kMiB * (256 + 64 + 512 + 16 + 80 + 512 + 64 + 512 + 256 + 64));
  // Keys of 40 x L / 4 tokens, 128 B and a scale each: more than the latents of four prompts.
  EXPECT_EQ(sparse_workspace(flash), Bytes{std::int64_t{10} * 1048576 * 132});
  EXPECT_EQ(flash.indexer_logits, kMiB * 512);
}

TEST(StepProgram, MixedStepsInsideGraphsSplitKeys) {
  const Deployment llama = deployment("meta-llama/Llama-3.1-8B-Instruct");
  const opgraph::Program program(step_graph(llama, 0,
                                            {.execution = Execution::kPiecewiseGraph,
                                             .sampling = Sampling::kNone,
                                             .attention = AttentionRun::kSplits}));
  EXPECT_EQ(program.peak({128, 1, 0}).bytes,
            Bytes{std::int64_t{32} * 128 * 32 * 129 * 4 + 128 * 32 * 4});
}

TEST(StepPeaks, StepsWithinTheCapturedSizesRunInGraphs) {
  const StepPeaks peaks(deployment("meta-llama/Llama-3.1-8B-Instruct"), 0);
  EXPECT_EQ(peaks.execution_of(Tokens{512}, 512), Execution::kFullGraph);
  EXPECT_EQ(peaks.execution_of(Tokens{512}, 1), Execution::kPiecewiseGraph);
  EXPECT_EQ(peaks.execution_of(Tokens{513}, 513), Execution::kCompiled);
  const StepPeaks eager(deployment("meta-llama/Llama-3.1-8B-Instruct --enforce-eager"), 0);
  EXPECT_EQ(eager.execution_of(Tokens{1}, 1), Execution::kEager);
}

// Deep models repeat their layers; a program leaves repetitions out and gives the same peak.
TEST(StepProgram, RepeatedLayersAreLeftOut) {
  const Deployment deep =
      deployment("meta-llama/Llama-3.3-70B-Instruct -tp 8 --max-model-len 8192");
  EXPECT_LT(step_graph(deep, 0, profile_kind(deep, {})).op_count(), 200U);
}

// Phi-3 runs in Llama's classes: gate_up is gone before the output is made. H 3072, I 8192.
TEST(StepProgram, EagerPhi3HoldsWhatLlamaHolds) {
  const Deployment phi = deployment("microsoft/Phi-3-mini-128k-instruct --enforce-eager", "0.33.0");
  EXPECT_EQ(forward_peak(phi, 8192, Execution::kEager),
            Bytes{std::int64_t{8192} * 2 * (3 * 8192 + 3 * 3072)});
}

// Recorded for gpt-oss with 1024 requests: V 201,088.
TEST(Resident, SamplingStatesOfTheSecondRunner) {
  const auto bytes = [](const Deployment& of) {
    Bytes sum;
    for (const opgraph::LiveTensor& state : sampling_states(of, {})) {
      sum += state.bytes;
    }
    return sum;
  };
  const std::string line = "openai/gpt-oss-20b --enforce-eager --max-num-seqs 1024";
  EXPECT_EQ(bytes(deployment(line, "0.33.0")),
            Bytes{2 * 25'739'264 + 823'656'448 + 4 * 4'194'304 + 2 * 524'288 + 528'384 + 4096});
  EXPECT_EQ(bytes(deployment(line, "0.19.0")), Bytes{}) << "the first runner has none";
  // Grammars have a row for each draft too; n-grams are looked for on the card (recorded:
  // 113017856 B more with 4 drafts of Qwen3-0.6B and 1024 x 8192 tokens).
  const std::string drafts =
      R"( --max-model-len 8192 --speculative-config '{"method":"ngram","num_speculative_tokens":4}')";
  const Deployment plain = deployment(line + " --max-model-len 8192", "0.33.0");
  const Deployment drafting = deployment(line + drafts, "0.33.0");
  ASSERT_TRUE(drafting.runner_v2);
  EXPECT_EQ(bytes(drafting) - bytes(plain), Bytes{4 * (25'739'264 + 4096)});
  const auto buffers = [](const Deployment& of) {
    Bytes sum;
    for (const opgraph::LiveTensor& buffer : runner_buffers(of, {})) {
      sum += buffer.bytes;
    }
    return sum;
  };
  EXPECT_EQ(buffers(drafting) - buffers(plain), Bytes{1024 * 8192 * 4});
  // A drafter of the first runner: ids, positions, hidden states and embeddings (recorded with
  // 0.19: two of 41943040 B for Qwen3.5-4B and 8192 tokens).
  const std::string mtp = R"( --speculative-config '{"method":"mtp","num_speculative_tokens":2}')";
  const std::string model = "Qwen/Qwen3.5-4B --enforce-eager --max-num-batched-tokens 8192";
  EXPECT_EQ(buffers(deployment(model + mtp, "0.19.0")) - buffers(deployment(model, "0.19.0")),
            Bytes{8192 * 12 + 2 * 41'943'040});
}

// 32 heads of 128 x 128 in fp32 are 2 MiB: a state each block of 8192 tokens, three of
// FlashInfer's, and its chunk (32 x 64 x 64 x 2) and descriptors (2 x 132 x 128). With experts,
// whose workspace is larger, no states at checkpoints.
TEST(Resident, DeltaNetKeepsStatesAtCheckpoints) {
  const auto bytes = [](const Deployment& of) {
    Bytes sum;
    for (const opgraph::TensorInfo& buffer :
         delta_net_buffers(of, of.model->layer(0).attention.state)) {
      sum += buffer.bytes.at({1, 1, 1});
    }
    return sum;
  };
  const std::string flags = " --max-model-len 8192 --max-num-batched-tokens 8192";
  const Bytes kernels = kMiB * (3 * 2) + Bytes{262'144 + 2 * 16'896};
  const Deployment dense = deployment("Qwen/Qwen3.5-4B" + flags, "0.33.0");
  EXPECT_EQ(bytes(dense), kernels + kMiB * 2 * div_ceil(8192, dense.block_size.count()));
  EXPECT_EQ(bytes(deployment("Qwen/Qwen3.5-35B-A3B" + flags, "0.33.0")), kernels);
}

}  // namespace
}  // namespace oomcast::vllm
