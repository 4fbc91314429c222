// TensorRT-LLM's share of free memory and its blocks, on paper; figures of public logs where named.
#include "sim/engines/trtllm/startup.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"
#include "sim/run/plan.hpp"

namespace oomcast::trtllm {
namespace {

Plan plan(const std::string& line, const std::string& gpu, const std::string& version,
          std::vector<std::string> assume = {}) {
  DeploymentInput input;
  input.launch_line = "trtllm-serve " + line;
  input.gpu = gpu;
  input.engine_version = version;
  input.assume = std::move(assume);
  return start(resolve_input(input));
}

constexpr const char* kLlama = "meta-llama/Llama-3.1-8B-Instruct ";

TEST(TrtllmStartup, OldManagerRoundsBlocksUp) {
  // 26.91 GiB / 131072 B = 220446 tokens = 3444.5 blocks of 64 (NVIDIA's Dynamo guide: 220480).
  const Plan old = plan(kLlama, "H100-80GB", "0.17.0", {"available_kv_gib=26.91"});
  EXPECT_EQ(old.report().kv_blocks, 3445);
  EXPECT_EQ(old.report().kv_tokens, 220480);
  EXPECT_EQ(old.report().block_size, 64);
}

TEST(TrtllmStartup, NewManagerRoundsBlocksDown) {
  // 22 layers x 2 x 4 heads x 64 x 2 B = 22528 B; 10 GiB / 22528 B = 476625 tokens, 14894.5 blocks.
  const Plan tiny =
      plan("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "H100-80GB", "1.2.1", {"available_kv_gib=10"});
  EXPECT_EQ(tiny.report().kv_blocks, 14894);
  EXPECT_EQ(tiny.report().available_kv, Bytes{22528} * (14894 * 32));
}

TEST(TrtllmStartup, TheFractionIsOfWhatIsFree) {
  // 0.9 x 20 GiB = 18 GiB = 147456 tokens of 128 KiB.
  const Plan old = plan(kLlama, "H100-80GB", "0.17.0", {"free_for_kv_gib=20"});
  EXPECT_EQ(old.report().kv_tokens, 147456);
  const Plan half = plan(std::string(kLlama) + "--free_gpu_memory_fraction 0.5", "H100-80GB",
                         "0.17.0", {"free_for_kv_gib=20"});
  EXPECT_EQ(half.report().kv_tokens, 81920);
}

TEST(TrtllmStartup, TheDryRunsPeakLeavesLess) {
  const Plan few = plan(std::string(kLlama) + "--max_num_tokens 1024", "H100-80GB", "1.2.0");
  const Plan many = plan(std::string(kLlama) + "--max_num_tokens 16384", "H100-80GB", "1.2.0");
  ASSERT_TRUE(few.outcome().fits());
  // Three hidden states and three widths of the MLP, 16 bits each, for 15360 tokens more; the
  // allocator rounds each tensor up to 2 MiB.
  const Bytes more = Bytes{15360} * (2 * (3 * 4096 + 3 * 14336));
  const Bytes difference = *many.report().activation_peak - *few.report().activation_peak;
  EXPECT_NEAR(to_mib(difference), to_mib(more), 8.0);
  // The temporary cache itself is given back.
  EXPECT_NEAR(to_gib(*few.report().available_kv - *many.report().available_kv),
              0.9 * to_gib(difference), 0.02);
}

// 10^9 B are 7629 tokens of 128 KiB, 238 blocks of 32.
TEST(TrtllmStartup, TheHostPoolIsWholeBlocks) {
  const Plan host = plan(std::string(kLlama) + "--host-cache-size 1000000000", "H100-80GB", "1.2.0",
                         {"available_kv_gib=10"});
  const auto& on = *host.as<Plan::Trtllm>();
  EXPECT_EQ(host_blocks(on.deployment, 0), Blocks{238});
  EXPECT_EQ(on.startup.stages.front().memory.ledger().at(Leaf::kKvPool, Backing::kPinnedHost),
            Bytes{131'072} * (238 * 32));
  const Plan none = plan(kLlama, "H100-80GB", "1.2.0", {"available_kv_gib=10"});
  EXPECT_EQ(host.report().kv_blocks, none.report().kv_blocks);
  EXPECT_TRUE(offloads(on.deployment));
  for (const char* flag : {"--secondary-offload-min-priority 36", "--no-onboard-blocks"}) {
    const Plan off = plan(std::string(kLlama) + "--host-cache-size 1000000000 " + flag, "H100-80GB",
                          "1.2.0", {"available_kv_gib=10"});
    EXPECT_FALSE(offloads(off.as<Plan::Trtllm>()->deployment)) << flag;
  }
}

TEST(TrtllmStartup, ACardTooSmallNamesTheComponent) {
  const Plan small = plan(kLlama, "T4", "1.2.0");
  ASSERT_FALSE(small.outcome().fits());
  EXPECT_NE(small.outcome().message.find("could not be created: "), std::string::npos)
      << small.outcome().message;
}

TEST(TrtllmStartup, BadValuesAreNamedTogether) {
  try {
    plan(std::string(kLlama) + "--free_gpu_memory_fraction 1.0 --cp_size 2", "H100-80GB", "1.2.0");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("free-gpu-memory-fraction"), std::string::npos) << text;
    EXPECT_NE(text.find("cp-size"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace oomcast::trtllm
