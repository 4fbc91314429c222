// Packed blocks of DeepSeek V4's caches, on paper and against an error text of the engine.
#include "sim/engines/vllm/kv_packed.hpp"

#include <gtest/gtest.h>

#include "sim/run/plan.hpp"

namespace oomcast::vllm {
namespace {

Deployment v4(const std::string& version, const std::string& more) {
  DeploymentInput input;
  input.launch_line =
      "vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 8 --enable-expert-parallel "
      "--kv-cache-dtype fp8 " +
      more;
  input.model_config =
      std::string(OOMCAST_TEST_DATA) + "/models/configs/deepseek-ai__DeepSeek-V4-Flash.json";
  input.gpu = "B200";
  input.engine_version = version;
  return std::move(*resolve_input(input).as<vllm::Deployment>());
}

// Pages of a block of 256 tokens: 64 entries x 584 B -> 37440, 64 keys x 132 B -> 8640 and 2
// entries x 584 B -> 1728, in units of 576 B.
constexpr std::int64_t kEntries = 37'440;
constexpr std::int64_t kKeys = 8'640;
constexpr std::int64_t kSparse = 1'728;
// 21 layers of ratio 4, 20 of ratio 128, 43 windows. Groups of 22 pad the 21, 43, 21 and 20 layers
// by 5, those of 21 by 21.
constexpr std::int64_t kTuples = 22;

TEST(PackedKv, GroupsShareBlocksOfPagesOfSeveralSizes) {
  const Deployment deployment = v4("0.25.0", "--max-num-batched-tokens 8192");
  const KvLayout layout = deployment.kv_layout(0);
  ASSERT_EQ(layout.groups.size(), 5U) << "entries, two halves of the windows, two of states";
  EXPECT_EQ(layout.groups[0].group.block_size, Tokens{256});
  EXPECT_EQ(layout.groups[0].layers, 21 + 21 + 20);
  EXPECT_EQ(layout.groups[1].layers, 22);
  EXPECT_EQ(layout.groups[2].layers, 21);
  EXPECT_EQ(layout.groups[1].group.block_size, Tokens{64});
  EXPECT_EQ(layout.groups[3].group.block_size, Tokens{4});
  EXPECT_EQ(layout.groups[3].group.window, Tokens{8});
  EXPECT_EQ(layout.groups[4].group.block_size, Tokens{8});
  EXPECT_EQ(layout.block_bytes(), Bytes{22 * kEntries + 21 * kKeys + 20 * kSparse});
  EXPECT_EQ(v4("0.22.0", "").kv_layout(0).block_bytes(),
            Bytes{kTuples * (kEntries + kKeys + kSparse)})
      << "as many of each size before 0.23";
}

// "6.66 GiB KV cache is needed, which is larger than the available KV cache memory (5.44 GiB) …
// estimated maximum model length is 13528": vLLM of mid-2026, 30,000 tokens, 16,384 in flight
// (vllm-project/vllm#44376).
TEST(PackedKv, NeedIsTheEnginesOwn) {
  const Deployment deployment = v4("0.22.0", "--max-num-batched-tokens 16384");
  const KvLayout layout = deployment.kv_layout(0);
  const auto gib = [&](std::int64_t length) {
    return to_gib(deployment.kv_needed(layout, Tokens{length}));
  };
  EXPECT_NEAR(gib(30'000), 6.66, 0.005);
  EXPECT_NEAR(gib(13'528), 5.44, 0.005);
}

TEST(PackedKv, ASequenceOfAMillionTokens) {
  const Deployment deployment =
      v4("0.25.0", "--max-model-len 1048576 --max-num-batched-tokens 8192");
  const std::int64_t first = 21 * kEntries + 21 * kKeys + 20 * kSparse;
  // Windows of 128 and 8192 scheduled tokens, and one block more: 131 of 64 tokens, 2051 of 4, 1041
  // of 8.
  const std::int64_t bytes = 4096 * first + 131 * (22 + 21) * kEntries +
                             2051 * (21 * kEntries + 21 * kKeys) + 1041 * 20 * kEntries;
  EXPECT_EQ(deployment.blocks_per_sequence(deployment.kv_layout(0)), div_ceil(bytes, first));
}

TEST(PackedKv, ReleasesWithoutTheModelRefuseIt) {
  try {
    v4("0.19.0", "");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("DeepseekV4ForCausalLM"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace oomcast::vllm
