// Paper arithmetic: what a model of known shape must weigh and keep.
#include "models/spec.hpp"

#include <gtest/gtest.h>

#include "models/catalog.hpp"
#include "models/kv.hpp"
#include "models/load.hpp"
#include "models/weights.hpp"
#include "sim/core/error.hpp"
#include "tests/unit/models/loaded_bytes.hpp"

namespace oomcast::models {
namespace {

TEST(Spec, Llama8bOnPaper) {
  const ModelSpec spec = catalog_model("meta-llama/Llama-3.1-8B-Instruct");
  // 2 x 128256 x 4096 + 4096 + 32 x (4096 x (4096 + 2 x 1024) + 4096 x 4096 + 3 x 4096 x 14336
  //                                  + 2 x 4096)
  constexpr std::int64_t kLayer =
      4096LL * (4096 + 2048) + 4096LL * 4096 + 3LL * 4096 * 14336 + 2 * 4096;
  EXPECT_EQ(parameter_count(spec), 2LL * 128256 * 4096 + 4096 + 32 * kLayer);
  EXPECT_EQ(parameter_count(spec), 8'030'261'248);

  const RankWeights weights = weights_on_rank(spec, {});
  EXPECT_EQ(weights.weights, Bytes{2 * 8'030'261'248});
  EXPECT_EQ(weights.buffers, Bytes{131072LL * 128 * 2}) << "one rope table, 32 MiB";
  EXPECT_EQ(weights.scales, Bytes{32LL * 4 * 4}) << "four fp32 scalars a layer";
  EXPECT_NEAR(to_gib(loaded_bytes(weights)), 14.99, 0.005);

  const auto layers = kv_layers(spec, {});
  ASSERT_EQ(layers.size(), 32U);
  EXPECT_EQ(kv_bytes_per_token(layers, DType::kBFloat16), Bytes{131072});
  EXPECT_EQ(kv_bytes_per_token(layers, DType::kFloat8), Bytes{65536});
  EXPECT_EQ(spec.length.derived, Tokens{131072});
}

TEST(Spec, TiedEmbeddingCountsOnceAndLoadsTwiceOverTwoStages) {
  const ModelSpec spec = catalog_model("meta-llama/Llama-3.2-1B-Instruct");
  ASSERT_TRUE(spec.tie_word_embeddings);
  const Bytes embedding{128256LL * 2048 * 2};
  const Bytes whole = weights_on_rank(spec, {}).weights;
  EXPECT_EQ(whole, Bytes{2 * parameter_count(spec)});
  const Bytes first = weights_on_rank(spec, {.pp = 2, .pp_rank = 0}).weights;
  const Bytes last = weights_on_rank(spec, {.pp = 2, .pp_rank = 1}).weights;
  EXPECT_EQ(first + last, whole + embedding);
}

TEST(Spec, TensorParallelRanksAddUpButForWhatIsReplicated) {
  const ModelSpec spec = catalog_model("meta-llama/Llama-3.1-70B-Instruct");
  const Bytes whole = weights_on_rank(spec, {}).weights;
  const Bytes norms{(2LL * 80 + 1) * 8192 * 2};
  for (const int tp : {2, 4, 8}) {
    EXPECT_EQ(weights_on_rank(spec, {.tp = tp}).weights * tp, whole + norms * (tp - 1)) << tp;
  }
  // 16 ranks for 8 KV heads: every head lies on two ranks.
  const Bytes kv{2LL * 8 * 128 * 8192 * 2 * 80};
  EXPECT_EQ(weights_on_rank(spec, {.tp = 16}).weights * 16, whole + norms * 15 + kv);
  EXPECT_EQ(kv_layers(spec, {.tp = 16}).front().kv_heads, 1);
  EXPECT_EQ(kv_bytes_per_token(kv_layers(spec, {.tp = 16}), DType::kBFloat16),
            kv_bytes_per_token(kv_layers(spec, {.tp = 8}), DType::kBFloat16));
}

TEST(Spec, AdapterSlotsLieBesideEveryLinear) {
  const ModelSpec spec = catalog_model("meta-llama/Llama-3.1-8B-Instruct");
  const auto added = [&](const ShardPlan& plan, const LoraSlots& lora) {
    ShardPlan with = plan;
    with.lora = lora;
    return weights_on_rank(spec, with).weights - weights_on_rank(spec, plan).weights;
  };
  // Of each adapter: down q, k, v, o, gate and up from 4096, down_proj from 14336; up into 4096,
  // 1024, 1024, 4096, 14336, 14336 and 4096.
  constexpr std::int64_t kDown = 6 * 4096 + 14'336;
  constexpr std::int64_t kUp = 4096 + 1024 + 1024 + 4096 + 14'336 + 14'336 + 4096;
  EXPECT_EQ(added({}, {.slots = 4, .rank = 16}), Bytes{32LL * 4 * 16 * (kDown + kUp) * 2});
  // Two ranks: o and down_proj take half of their input, the others give half of their output.
  constexpr std::int64_t kDownOfTwo = 5 * 4096 + 4096 / 2 + 14'336 / 2;
  constexpr std::int64_t kUpOfTwo = (4096 + 1024 + 1024 + 14'336 + 14'336) / 2 + 4096 + 4096;
  EXPECT_EQ(added({.tp = 2}, {.slots = 1, .rank = 8}),
            Bytes{32LL * 8 * (kDownOfTwo + kUpOfTwo) * 2});
  EXPECT_EQ(added({.tp = 2}, {.slots = 1, .rank = 8, .fully_sharded = true}),
            Bytes{32LL * 8 * (kDown + kUp) / 2 * 2});
  // Embedding and head: the whole vocabulary and the hidden size, each on every rank.
  EXPECT_EQ(added({.tp = 2}, {.slots = 2, .rank = 8, .embeddings = true}) -
                added({.tp = 2}, {.slots = 2, .rank = 8}),
            Bytes{2LL * 2 * 8 * (128'256 + 4096) * 2});
  // A tied head that is the embedding's module takes what an embedding takes once more; Llama's
  // head here is none.
  const LoraSlots again{.slots = 2, .rank = 32, .embeddings = true, .tied_embedding_twice = true};
  LoraSlots once = again;
  once.tied_embedding_twice = false;
  EXPECT_EQ(added({}, again), added({}, once));
  ModelSpec tied = spec;
  tied.tie_word_embeddings = true;
  EXPECT_EQ(weights_on_rank(tied, {.lora = again}).weights -
                weights_on_rank(tied, {.lora = once}).weights,
            Bytes{2LL * 32 * (128'256 + 4096) * 2});
}

TEST(Spec, TheFirstLayersGoToTheHostUntilTheirBytesAreReached) {
  const ModelSpec spec = catalog_model("meta-llama/Llama-3.1-8B-Instruct");
  const RankWeights whole = weights_on_rank(spec, {});
  // qkv_proj of the first layer has 50,331,648 B; o_proj, with 33,554,432 B, goes beyond 60 MB.
  const RankWeights part = weights_on_rank(spec, {.host_weights = Bytes{60'000'000}});
  EXPECT_EQ(part.on_host, Bytes{50'331'648 + 33'554'432});
  EXPECT_EQ(part.total() + part.on_host, whole.total());
  EXPECT_EQ(weights_on_rank(spec, {.host_weights = Bytes{1LL << 40}}).weights,
            Bytes{2 * (2LL * 128256 * 4096 + 4096)})
      << "embedding, head and last norm stay";
  Bytes held;
  for (const LoadCall& call : load_sequence(part)) {
    held += call.kind == LoadCall::Kind::kAllocate ? call.bytes : Bytes{};
  }
  EXPECT_GT(held, part.total()) << "made on the device first";
}

TEST(Spec, VocabularyIsPaddedTo64BeforeItIsDivided) {
  const ModelSpec spec = catalog_model("allenai/Olmo-3.1-32B-Instruct");
  EXPECT_EQ(spec.vocabulary, 100278);
  const Bytes weights = weights_on_rank(spec, {}).weights;
  EXPECT_EQ(weights, Bytes{2 * parameter_count(spec)} + Bytes{2LL * 10 * 5120 * 2})
      << "100278 -> 100288, embedding and head";
}

TEST(Spec, PipelineRemainderGoesToTheStagesBeforeTheLast) {
  const ModelSpec spec = catalog_model("Qwen/Qwen2.5-7B");  // 28 layers
  const auto stage = [&](int rank) {
    const LayerRange range = stage_layers(spec, {.pp = 3, .pp_rank = rank});
    return range.end - range.begin;
  };
  EXPECT_EQ(stage(0), 9);
  EXPECT_EQ(stage(1), 10);
  EXPECT_EQ(stage(2), 9);
  EXPECT_EQ(stage_layers(spec, {.pp = 2, .pp_rank = 1, .layers_per_stage = {20, 8}}).begin, 20);
  EXPECT_THROW(stage_layers(spec, {.pp = 2, .layers_per_stage = {20, 9}}), ConfigError);
  EXPECT_THROW(stage_layers(spec, {.pp = 29}), ConfigError);
}

TEST(Spec, RefusedShardingNamesEverythingThatDoesNotDivide) {
  const ModelSpec spec = catalog_model("Qwen/Qwen2.5-7B");  // 28 heads, 4 KV heads
  EXPECT_NO_THROW(check_sharding(spec, {.tp = 4}));
  try {
    weights_on_rank(spec, {.tp = 8});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("28 attention heads"), std::string::npos);
  }
  EXPECT_THROW(weights_on_rank(spec, {.tp = 3}), ConfigError);
  EXPECT_THROW(weights_on_rank(spec, {.tp = 0}), ConfigError);
}

TEST(Spec, WindowsAndRopesOfGemma3) {
  const ModelSpec spec = catalog_model("google/gemma-3-27b-it");
  int full = 0;
  for (int i = 0; i < spec.layer_count(); ++i) {
    const AttentionSpec& attention = spec.layer(i).attention;
    const bool is_full = attention.kind == AttentionKind::kFull;
    EXPECT_EQ(is_full, i % 6 == 5) << i;
    EXPECT_EQ(attention.window, Tokens{is_full ? 0 : 1024});
    full += is_full ? 1 : 0;
  }
  EXPECT_EQ(full, 10);
  // 10 full layers at 128K: 10 GiB; 2 x 16 heads x 128 x 2 B a token and layer.
  EXPECT_EQ(kv_bytes_per_token(kv_layers(spec, {}).at(5), DType::kBFloat16) * 131072 * full,
            kGiB * 10);
  EXPECT_EQ(spec.ropes.size(), 2U) << "local and global";
  EXPECT_EQ(spec.length.derived, Tokens{131072}) << "linear scaling does not lengthen gemma3";
}

TEST(Spec, RopeScalingLengthensTheContext) {
  const ModelSpec olmo = catalog_model("allenai/Olmo-3.1-32B-Instruct");
  EXPECT_EQ(olmo.length.derived, Tokens{65536}) << "yarn: 8 x 8192";
  const ModelSpec phi = catalog_model("microsoft/Phi-3-mini-128k-instruct");
  EXPECT_EQ(phi.length.derived, Tokens{131072}) << "longrope does not multiply";
  EXPECT_EQ(phi.ropes.front().table_rows, 4096 + 131072) << "short and long table";
}

TEST(Spec, TransformersBackendKeepsNoRopeTables) {
  EXPECT_TRUE(uses_transformers_backend("Olmo3ForCausalLM", Version{{0, 33, 0}}));
  EXPECT_FALSE(uses_transformers_backend("Olmo3ForCausalLM", Version{{0, 19, 0}}));
  EXPECT_FALSE(uses_transformers_backend("LlamaForCausalLM", Version{{0, 33, 0}}));
  const ModelSpec spec = catalog_model("allenai/Olmo-3.1-32B-Instruct");
  EXPECT_EQ(weights_on_rank(spec, {}).buffers, kMiB * 32);
  EXPECT_EQ(weights_on_rank(spec, {.transformers_backend = true}).buffers, Bytes{2 * 2 * 64 * 4});
}

TEST(Spec, LoadingInFp32DoublesAllButFp32) {
  const ModelSpec spec = catalog_model("Qwen/Qwen3-8B");
  const RankWeights half = weights_on_rank(spec, {});
  const RankWeights full = weights_on_rank(spec, {.dtype = DType::kFloat32});
  EXPECT_EQ(full.weights, half.weights * 2);
  EXPECT_EQ(full.scales, half.scales);
}

}  // namespace
}  // namespace oomcast::models
