// What layers keep, for models whose layers differ: figures from the published shapes.
#include <gtest/gtest.h>

#include "models/config_reader.hpp"
#include "models/kv.hpp"
#include "models/weights.hpp"
#include "tests/unit/models/config_path.hpp"

namespace oomcast::models {
namespace {

struct Sums {
  int growing = 0;  // caches without a window or a state alone
  int windows = 0;
  int states = 0;
  Bytes growing_bytes;  // a token
  Bytes window_bytes;   // a token inside the window
  Bytes state;          // a sequence
};

Sums sums_of(const std::vector<KvLayerSpec>& caches) {
  Sums out;
  for (const KvLayerSpec& cache : caches) {
    const Bytes token = kv_bytes_per_token(cache, DType::kBFloat16);
    out.state += state_bytes(cache, DType::kBFloat16);
    out.states += state_bytes(cache, DType::kBFloat16) > Bytes{0} ? 1 : 0;
    if (cache.window > Tokens{0}) {
      ++out.windows;
      out.window_bytes += token;
    } else if (token > Bytes{0}) {
      ++out.growing;
      out.growing_bytes += token;
    }
  }
  return out;
}

ModelSpec carried(const std::string& file) { return read_model_config(config_path(file)); }

TEST(Caches, Gemma4SharesKeysAndValuesOfTheLastLayerOfEachKind) {
  const ModelSpec spec = carried("google__gemma-4-E2B-it.json");
  const Sums sums = sums_of(kv_layers(spec, {}));
  EXPECT_EQ(sums.windows, 12);
  EXPECT_EQ(sums.growing, 3);
  EXPECT_EQ(sums.growing_bytes, Bytes{3 * 2 * 512 * 2});
  EXPECT_EQ(sums.window_bytes, Bytes{12 * 2 * 256 * 2});
  EXPECT_EQ(spec.layer(34).attention.kv_from_layer, 14) << "global";
  EXPECT_EQ(spec.layer(33).attention.kv_from_layer, 13) << "with a window";
}

TEST(Caches, NemotronKeepsStatesInFp32) {
  const ModelSpec spec = carried("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json");
  const Sums sums = sums_of(kv_layers(spec, {}));
  EXPECT_EQ(sums.states, 23);
  EXPECT_EQ(sums.growing_bytes, Bytes{6144});
  EXPECT_EQ(sums.state, Bytes{12'058'624LL * 4 + 423'936LL * 2});
  // 8 groups on 16 ranks: one each, so conv states stop shrinking with the heads.
  const KvLayerSpec mamba = kv_layers(spec, {.tp = 16}).front();
  EXPECT_EQ(mamba.conv_elements, (4096 / 16 + 2 * 128) * 3);
  EXPECT_EQ(mamba.recurrent_elements, 64 / 16 * 64 * 128);
}

TEST(Caches, DeepSeekV4KeepsAWindowAndCompressedLatentsInEachLayer) {
  const ModelSpec spec = carried("deepseek-ai__DeepSeek-V4-Flash.json");
  const std::vector<KvLayerSpec> caches = kv_layers(spec, {});
  const Sums sums = sums_of(caches);
  EXPECT_EQ(sums.windows, 43);
  EXPECT_EQ(sums.window_bytes, Bytes{43 * 512 * 2});
  EXPECT_EQ(sums.growing, 41) << "21 of ratio 4, 20 of ratio 128";
  // 4 tokens share a latent of 1 KiB and a key of 132 B; 128 tokens a latent.
  EXPECT_EQ(sums.growing_bytes, Bytes{21 * (1024 + 132) / 4 + 20 * 1024 / 128});
  const KvLayerSpec& indexed = caches.at(3);
  EXPECT_EQ(indexed.kind, AttentionKind::kCompressed);
  EXPECT_EQ(indexed.tokens_per_entry, 4);
  // fp32 values and scores of the 8 tokens of two overlapping entries, both 2 x 512 and 2 x 128
  // wide.
  EXPECT_EQ(state_bytes(indexed, DType::kBFloat16), Bytes{8LL * 2 * 2 * (512 + 128) * 4});
  EXPECT_EQ(kv_layers(spec, {.tp = 8}), caches) << "every rank keeps all of it";
  EXPECT_EQ(draft_kv_layers(spec, {}).size(), 1U);
  EXPECT_EQ(draft_kv_layers(spec, {}).front().layer, 43);
}

TEST(Caches, MimoHasOtherHeadsInLayersWithAWindow) {
  const Sums sums = sums_of(kv_layers(carried("XiaomiMiMo__MiMo-V2-Flash.json"), {}));
  EXPECT_EQ(sums.growing_bytes, Bytes{9 * 4 * (192 + 128) * 2});
  EXPECT_EQ(sums.window_bytes, Bytes{39 * 8 * (192 + 128) * 2});
}

TEST(Caches, ALayerMayKeepTwo) {
  const ModelSpec longcat = carried("partial/meituan-longcat__LongCat-Flash-Chat.json");
  EXPECT_EQ(longcat.layer_count(), 28);
  EXPECT_EQ(sums_of(kv_layers(longcat, {})).growing, 56);
  EXPECT_EQ(sums_of(kv_layers(longcat, {})).growing_bytes, Bytes{64512});
}

TEST(Caches, JambaAndGraniteMixStatesWithKeysAndValues) {
  const Sums jamba = sums_of(kv_layers(carried("partial/ai21labs__Jamba-v0.1.json"), {}));
  EXPECT_EQ(jamba.growing_bytes, Bytes{16384});
  EXPECT_EQ(jamba.state, Bytes{2 * (3'670'016 + 688'128)});
  const Sums granite = sums_of(kv_layers(carried("ibm-granite__granite-4.0-h-micro.json"), {}));
  EXPECT_EQ(granite.growing, 4);
  EXPECT_EQ(granite.states, 36);
  EXPECT_EQ(granite.state, Bytes{36 * 2 * (3 * 4352 + 64 * 64 * 128)});
}

}  // namespace
}  // namespace oomcast::models
