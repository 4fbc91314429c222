// Launch lines of SGLang, and the startup that follows.
#include "sim/engines/sglang/startup.hpp"

#include <gtest/gtest.h>

#include "models/catalog.hpp"
#include "models/config_reader.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/sglang/load.hpp"
#include "sim/engines/sglang/resident.hpp"
#include "sim/engines/sglang/step_program.hpp"

namespace oomcast::sglang {
namespace {

Deployment deployment(const std::string& model, const std::string& flags = "",
                      const std::string& gpu = "H100-80GB", const std::string& version = "0.5.23") {
  launch::LaunchOptions options;
  options.engine_version = version;
  launch::Launch line =
      launch::parse_launch("sglang serve --model-path " + model + " " + flags, options);
  return resolve(std::move(line), std::make_shared<models::ModelSpec>(models::catalog_model(model)),
                 models::find_gpu(gpu), CardState{}, Assumed{});
}

std::string refusal(const std::string& model, const std::string& flags,
                    const std::string& version = "0.5.23") {
  try {
    deployment(model, flags, "H100-80GB", version);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

constexpr const char* kLlama = "meta-llama/Llama-3.1-8B-Instruct";
constexpr const char* kMoe = "Qwen/Qwen3-30B-A3B";

// float16 whatever is asked for without bfloat16; nothing before Turing.
TEST(Resolve, OldCardsRunFloat16) {
  const auto dtype = [](const std::string& flags) { return deployment(kLlama, flags, "T4").dtype; };
  EXPECT_EQ(dtype(""), models::DType::kFloat16);
  EXPECT_EQ(dtype("--dtype bfloat16"), models::DType::kFloat16);
  EXPECT_THROW(deployment(kLlama, "", "V100-16GB"), ConfigError);
}

TEST(Resolve, FlagsByVersion) {
  EXPECT_NE(refusal(kLlama, "--enable-nsa-prefill-context-parallel", "0.5.9").find("prefill"),
            std::string::npos);
  EXPECT_EQ(refusal(kLlama, "--n-share-experts-fusion 0", "0.4.6"), "");
  EXPECT_NE(refusal(kLlama, "--cuda-graph-max-bs-decode 8", "0.5.8").find("0.5.9"),
            std::string::npos);
  EXPECT_EQ(deployment(kLlama, "--tp 2").tp, 2);
  EXPECT_EQ(deployment(kLlama, "--tp-size 2").tp, 2);
  EXPECT_EQ(deployment(kLlama, "--tensor-parallel-size 2").tp, 2);
}

// 64 heads of 64 x 128, in fp32 unless asked otherwise; a startup log of the model (16 GB card)
// has 38 slots of 72 MiB for its 36 layers.
TEST(Resolve, RecurrentStatesAreFp32) {
  const auto state = [](const std::string& environment, const std::string& flags) {
    launch::LaunchOptions options;
    options.engine_version = "0.5.12";
    const std::string model = "ibm-granite/granite-4.0-h-micro";
    const Deployment deployment =
        resolve(launch::parse_launch(
                    environment + "sglang serve --model-path " + model + " " + flags, options),
                std::make_shared<models::ModelSpec>(models::read_model_config(
                    OOMCAST_TEST_DATA "/models/configs/ibm-granite__granite-4.0-h-micro.json")),
                models::find_gpu("H100-80GB"), CardState{}, Assumed{});
    Bytes sum;
    for (const models::KvLayerSpec& layer : deployment.kv_layers(0)) {
      sum += models::bytes_of(layer.recurrent_dtype.value_or(models::DType::kFloat16),
                              layer.recurrent_elements);
    }
    return sum;
  };
  EXPECT_EQ(state("", ""), 72 * kMiB);
  EXPECT_EQ(state("", "--mamba-ssm-dtype bfloat16"), 36 * kMiB);
  EXPECT_EQ(state("SGLANG_MAMBA_SSM_DTYPE=bfloat16 ", ""), 36 * kMiB);
}

TEST(Resolve, AttentionAndPages) {
  EXPECT_EQ(deployment(kLlama).decode_backend, "fa3");
  EXPECT_EQ(deployment(kLlama, "", "RTX4090").decode_backend, "flashinfer");
  EXPECT_EQ(deployment(kLlama, "", "B200").page_size, Tokens{64});
  EXPECT_EQ(deployment(kLlama, "--kv-cache-dtype fp8_e5m2").decode_backend, "triton");
  EXPECT_NE(refusal(kLlama, "--page-size 48 --chunked-prefill-size 100").find("multiple"),
            std::string::npos);
}

TEST(Resolve, RecurrentStatesAreInSinglePrecisionUnlessAsked) {
  constexpr const char* kHybrid = "Qwen/Qwen3-Next-80B-A3B-Instruct";
  const auto dtype = [](const Deployment& deployment) {
    return deployment.kv_layers(0).front().recurrent_dtype;
  };
  EXPECT_EQ(dtype(deployment(kHybrid, "--tp 4")), models::DType::kFloat32);
  EXPECT_EQ(dtype(deployment(kHybrid, "--tp 4 --mamba-ssm-dtype bfloat16")),
            models::DType::kBFloat16);
}

TEST(Resolve, ArchitecturesThatLosePrefillGraphsKeepTheirReserve) {
  EXPECT_TRUE(deployment("ByteDance-Seed/Seed-OSS-36B-Instruct").prefill_sizes.empty());
  EXPECT_FALSE(deployment(kLlama).prefill_sizes.empty());
}

// 27 layers of 512 + 64; a page and a token more than the pool, in 16 bits for the queries.
TEST(Steps, EightBitLatentsAreConvertedAPoolAtATime) {
  constexpr const char* kMla = "deepseek-ai/DeepSeek-V2-Lite";
  const auto bytes = [](const Deployment& deployment, const std::string& backend) {
    return converted_latents(deployment, backend, deployment.model->layer(0).attention,
                             Tokens{1000});
  };
  const Deployment fp8 = deployment(kMla, "--kv-cache-dtype fp8_e4m3");
  EXPECT_EQ(bytes(fp8, "fa3"), Bytes{1001LL * 576 * 2});
  EXPECT_EQ(bytes(fp8, "flashinfer"), Bytes{1001LL * 576 * 2});
  EXPECT_EQ(bytes(fp8, "flashmla"), Bytes{0});
  EXPECT_EQ(bytes(deployment(kMla), "fa3"), Bytes{0});
}

// DeepSeek V3's draft has its own embedding and head (129280 x 7168, over 8 ranks) until its pool
// is there, and is one of 62 layers in the cell; Qwen3-Next's is not counted.
TEST(Drafts, OwnEmbeddingAndHeadGoAndCellsCount) {
  const std::string flags = "--tp 8 --speculative-algorithm NEXTN";
  const Deployment deepseek = deployment("deepseek-ai/DeepSeek-V3", flags, "H200");
  const LoadSequence draft = draft_sequence(deepseek, 0);
  ASSERT_EQ(draft.dropped.size(), 2U);
  for (const std::uint32_t end : draft.dropped) {
    EXPECT_EQ(draft.steps[end].bytes, Bytes{129280LL / 8 * 7168 * 2});
  }
  const double cell = 576 * 2;
  EXPECT_EQ(cache_sizes(deepseek, 0).full_token, 62 * cell);
  const std::string before = "0.5.13";
  EXPECT_EQ(cache_sizes(deployment("deepseek-ai/DeepSeek-V3", flags, "H200", before), 0).full_token,
            61 * cell);
  constexpr const char* kHybrid = "Qwen/Qwen3-Next-80B-A3B-Instruct";
  EXPECT_EQ(cache_sizes(deployment(kHybrid, flags, "H200"), 0).full_token,
            cache_sizes(deployment(kHybrid, "--tp 8", "H200"), 0).full_token);
}

TEST(Resident, FlashInferWorkspaceByArchitecture) {
  const auto largest = [](const std::string& model, const std::string& version) {
    Bytes most;
    for (const auto& tensor : attention_workspaces(
             deployment(model, "--attention-backend flashinfer", "H100-80GB", version))) {
      most = std::max(most, tensor.bytes);
    }
    return most;
  };
  EXPECT_EQ(largest(kLlama, "0.5.23"), kMiB * 384);
  EXPECT_EQ(largest("Qwen/Qwen3-8B", "0.5.23"), kMiB * 512);
  EXPECT_EQ(largest("Qwen/Qwen3-8B", "0.4.5"), kMiB * 384) << "Qwen 2 alone";
}

TEST(Resident, TensorRtAttentionAlsoMakesFlashInfersBuffers) {
  const auto sum = [](const std::string& model, const std::string& flags,
                      const std::string& version) {
    Bytes bytes;
    for (const auto& tensor : attention_workspaces(deployment(model, flags, "B200", version))) {
      bytes += tensor.leaf == Leaf::kWorkspaceAttention ? tensor.bytes : Bytes{0};
    }
    return bytes;
  };
  constexpr const char* kMha = "--attention-backend trtllm_mha";
  EXPECT_EQ(sum(kLlama, kMha, "0.5.11"), kMiB * (384 + 4 * 8 + 512));
  EXPECT_EQ(sum("Qwen/Qwen3-8B", kMha, "0.5.1"), kMiB * (512 + 4 * 8 + 512));
  EXPECT_EQ(sum("deepseek-ai/DeepSeek-V3", "--tp 8 --attention-backend trtllm_mla", "0.5.6"),
            kMiB * (384 + 4 * 8 + 128));
  // Full and windowed layers are planned apart.
  EXPECT_EQ(sum("openai/gpt-oss-20b", kMha, "0.5.11"), kMiB * (384 + 7 * 8 + 512));
}

TEST(Resolve, ArchitecturesHaveDefaultsOfTheirOwn) {
  constexpr const char* kLlama4 = "meta-llama/Llama-4-Scout-17B-16E-Instruct";
  EXPECT_EQ(deployment(kLlama4, "--tp 8", "A100-80GB").decode_backend, "triton");
  EXPECT_EQ(deployment(kLlama4, "--tp 8", "A100-80GB", "0.5.17").decode_backend, "flashinfer");
  EXPECT_EQ(
      deployment(kLlama4, "--tp 8 --attention-backend flashinfer", "A100-80GB").decode_backend,
      "flashinfer");
}

TEST(Resolve, SomeServeTextUnlessAsked) {
  constexpr const char* kGemma = "google/gemma-3-4b-it";
  const double text = deployment(kGemma).mem_fraction;
  EXPECT_DOUBLE_EQ(text, deployment(kGemma, "", "H100-80GB", "0.5.17").mem_fraction);
  EXPECT_EQ(deployment(kGemma).multimodal_reservation, Bytes{0});
  EXPECT_LT(deployment(kGemma, "--enable-multimodal").mem_fraction, 0.95 * text);
}

TEST(Resolve, AttentionGroupsDivideChunkAndHeads) {
  const Deployment groups = deployment(kMoe, "--tp 4 --dp 4 --enable-dp-attention");
  EXPECT_EQ(groups.chunk, 2048);
  EXPECT_EQ(groups.attention_tp(), 1);
  EXPECT_NE(refusal(kMoe, "--tp 4 --dp 3 --enable-dp-attention"), "");
}

// 48 gate rows a matrix, in no block of 128.
TEST(Resolve, GatesOfDeltaNetsMustStayOutOfBlocks) {
  const auto with = [](const std::string& kept) {
    const models::ModelSpec model =
        models::read_model_config(OOMCAST_TEST_DATA "/sglang_startup/Qwen__Qwen3.8-27B-FP8.json",
                                  {{"quantization_config", {{"modules_to_not_convert", {kept}}}}});
    launch::LaunchOptions options;
    options.engine_version = "0.5.23";
    return resolve(launch::parse_launch("sglang serve --model-path m", options),
                   std::make_shared<models::ModelSpec>(model), models::find_gpu("H100-80GB"),
                   CardState{}, Assumed{})
        .warnings;
  };
  const std::vector<std::string> named = with("model.layers.0.linear_attn.in_proj_b");
  const std::vector<std::string> matched = with("re:.*linear_attn\\.in_proj_(a|b)$");
  EXPECT_EQ(matched.size(), named.size() + 1);
  EXPECT_THROW(with("lm_head"), ConfigError);
}

TEST(Resolve, EverythingWrongIsSaidAtOnce) {
  const std::string said = refusal(kLlama, "--cpu-offload-gb 4 --context-length 999999999");
  EXPECT_NE(said.find("cpu-offload-gb"), std::string::npos);
  EXPECT_NE(said.find("context-length"), std::string::npos);
}

TEST(Startup, EarlyReleasesLeaveMultimodalModelsAShareOfTheFraction) {
  constexpr const char* kGemma = "google/gemma-3-4b-it";
  const auto of = [&](const char* version, const char* options) {
    return deployment(kGemma, options, "H100-80GB", version).mem_fraction;
  };
  const double usual = of("0.4.6", "");
  EXPECT_DOUBLE_EQ(of("0.4.4", ""), 0.95 * usual);
  EXPECT_DOUBLE_EQ(of("0.4.5", ""), 0.9 * usual);
  EXPECT_DOUBLE_EQ(of("0.4.8", "--enable-multimodal --mem-fraction-static 0.8"), 0.72);
  EXPECT_DOUBLE_EQ(of("0.4.9", "--enable-multimodal --mem-fraction-static 0.8"), 0.8);
}

TEST(Startup, PoolsFillTheFraction) {
  const Startup startup = simulate_startup(deployment(kLlama));
  ASSERT_TRUE(startup.outcome.fits()) << startup.outcome.message;
  const StageState& stage = startup.stages.front();
  // 131072 B a token; what is left over is less than one.
  const double budget = static_cast<double>(stage.free.after.count()) -
                        static_cast<double>(stage.free.before.count()) * (1 - 0.83);
  EXPECT_EQ(startup.report.kv_tokens, static_cast<std::int64_t>(budget / 131072));
  EXPECT_EQ(startup.report.max_running_requests, 2048);
  EXPECT_EQ(stage.phases.back().name, "ready");
  Bytes sum;
  for (const Bytes bytes : stage.phases.back().device) {
    sum += bytes;
  }
  EXPECT_EQ(sum, stage.phases.back().views.device_used);
}

TEST(Startup, GraphsOffTakeNoPool) {
  const Startup startup = simulate_startup(deployment(kLlama, "--disable-cuda-graph"));
  EXPECT_TRUE(startup.stages.front().graphs.empty());
  EXPECT_FALSE(startup.report.cudagraph.has_value());
}

TEST(Startup, GraphsOnceKeptTheirOwnLogits) {
  const auto drop = [](bool buffer) {
    Deployment at = deployment(kLlama, "--mem-fraction-static 0.8 --attention-backend triton",
                               "H100-80GB", "0.4.9");
    at.rules.logits_buffer = buffer;
    return simulate_startup(at).stages.front().decode_drop;
  };
  // Batches 1, 2, 4, 8, 16 .. 160 add up to 1687; the buffer holds the largest.
  const std::int64_t more = (1687 - 160) * 128256LL * 4;
  const Bytes difference = drop(false) - drop(true) - Bytes{more};
  EXPECT_LT(difference.count() < 0 ? Bytes{0} - difference : difference, 48 * kMiB);
}

TEST(Startup, PrefillGraphsOnceCameAfterDecodes) {
  const auto first = [](const char* version) {
    const Startup startup = simulate_startup(deployment(kLlama, "", "H100-80GB", version));
    return startup.stages.front().graphs.front().mode;
  };
  EXPECT_EQ(first("0.5.13"), "full");
  EXPECT_EQ(first("0.5.14"), "breakable");
}

TEST(Startup, GraphsOfFlashAttentionOnceCopiedPageTables) {
  const auto inputs = [](bool copies, const char* flags = "") {
    Deployment at =
        deployment(kLlama, std::string("--mem-fraction-static 0.7 ") + flags, "H100-80GB", "0.4.9");
    at.rules.copied_page_tables = copies;
    return simulate_startup(at).stages.front().phases.back().device[index_of(Leaf::kGraphStaticIo)];
  };
  // Rows of 131,072 tokens at pages of one, for all batches together.
  EXPECT_EQ(inputs(true) - inputs(false), Bytes{1687LL * 131072 * 4});
  EXPECT_EQ(inputs(true, "--attention-backend triton"),
            inputs(false, "--attention-backend triton"));
}

TEST(Startup, DecodesOfFlashAttentionOnceSplitEachSequenceAsIfAlone) {
  const auto pool = [](bool unbounded) {
    Deployment at =
        deployment("deepseek-ai/DeepSeek-V3", "--tp 8 --cuda-graph-max-bs 256", "H200", "0.5.7");
    at.rules.fa3_splits_unbounded = unbounded;
    return simulate_startup(at).stages.front().graphs.front().pool_growth;
  };
  // 16 heads are one block of 64 rows on 132 SMs: 109 splits of 512 + 1 floats.
  const std::int64_t partials = 256LL * 109 * 16 * 513 * 4;
  const Bytes more = pool(true) - pool(false);
  EXPECT_GT(more.count(), partials * 7 / 10);  // other tensors lie there without them
  // What a layer leaves may come to lie there as well; the next one's partials are then apart.
  EXPECT_LT(more.count(), 2 * partials);
}

TEST(Startup, DraftsAreLoadedBeforeOrAfterThePools) {
  constexpr const char* kDraft =
      "--tp 8 --mem-fraction-static 0.8 --speculative-algorithm EAGLE "
      "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 2";
  constexpr const char* kModel = "deepseek-ai/DeepSeek-V3";
  constexpr const char* kAlone = "--tp 8 --mem-fraction-static 0.8 --max-running-requests 48";
  const auto tokens = [](const char* flags, const char* version) {
    return *simulate_startup(deployment(kModel, flags, "H200", version)).report.kv_tokens;
  };
  EXPECT_EQ(tokens(kDraft, "0.5.13"), tokens(kAlone, "0.5.13"));
  // 1.6 GiB of weights and a 62nd layer less.
  EXPECT_LT(tokens(kDraft, "0.5.14"), tokens(kAlone, "0.5.14") * 61 / 62);
}

TEST(Startup, LongRequestTableEndsIt) {
  // 2049 rows of 10,485,764 positions: 80 GiB.
  const Startup startup =
      simulate_startup(deployment("meta-llama/Llama-4-Scout-17B-16E-Instruct", "--tp 8"));
  EXPECT_EQ(startup.outcome.kind, OutcomeKind::kStartupOom);
  EXPECT_EQ(startup.outcome.phase, "kv");
  EXPECT_EQ(startup.outcome.leaf, Leaf::kKvMetadata);
}

TEST(Startup, FractionTooSmallForTheWeights) {
  const Startup startup = simulate_startup(deployment(kLlama, "--mem-fraction-static 0.15"));
  EXPECT_EQ(startup.outcome.kind, OutcomeKind::kKvTooSmall);
  EXPECT_NE(startup.outcome.message.find("Raise --mem-fraction-static above"), std::string::npos);
  EXPECT_GT(startup.outcome.short_by, Bytes{0});
}

}  // namespace
}  // namespace oomcast::sglang
