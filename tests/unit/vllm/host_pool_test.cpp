// The host tier that a launch line asks for, on paper.
#include "sim/engines/vllm/host_pool.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"
#include "sim/run/plan.hpp"

namespace oomcast::vllm {
namespace {

AnyDeployment resolved(const std::string& line, const std::string& version,
                       const std::string& gpu = "H100-80GB") {
  DeploymentInput input;
  input.launch_line = "vllm serve " + line;
  input.gpu = gpu;
  input.engine_version = version;
  return resolve_input(input);
}

HostPool pool(const std::string& line, const std::string& version = "0.33.0") {
  return host_pool(*resolved(line, version).as<Deployment>()).value();
}

std::string refusal(const std::string& line, const std::string& version = "0.33.0",
                    const std::string& gpu = "H100-80GB") {
  try {
    resolved(line, version, gpu);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// 8 heads of 128, K and V, 16 bits, 32 layers: 131,072 B a token, 2 MiB a block of 16.
constexpr const char* kLlama = "meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 ";

std::string connector(const std::string& extra) {
  return std::string(kLlama) +
         R"(--kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",)"
         R"("kv_connector_extra_config":{)" +
         extra + "}}'";
}

TEST(HostPool, ASizeIsOfAllRanksTogether) {
  const HostPool one = pool(std::string(kLlama) + "--kv-offloading-size 4");
  EXPECT_EQ(one.chunk, kMiB * 2);
  EXPECT_EQ(one.chunks, 2048);
  EXPECT_EQ(one.rank_bytes(), kGiB * 4);
  const HostPool two = pool(std::string(kLlama) + "--kv-offloading-size 4 -tp 2");
  EXPECT_EQ(two.block, kMiB);
  EXPECT_EQ(two.chunk, kMiB * 2);
  EXPECT_EQ(two.rank_bytes(), kGiB * 2);
}

TEST(HostPool, WholeChunksAlone) {
  // Four blocks a chunk, 8,388,608 B: one fits into 10 MB.
  const HostPool one = pool(connector(R"("cpu_bytes_to_use":10000000,"block_size":64)"));
  EXPECT_EQ(one.chunk, kMiB * 8);
  EXPECT_EQ(one.chunks, 1);
  EXPECT_EQ(one.bytes(), kMiB * 8);
}

TEST(HostPool, LatentsAreKeptOncePerEngineFrom27On) {
  // 576 values of 16 bits in 27 layers, blocks of 64.
  const std::string line =
      "deepseek-ai/DeepSeek-V2-Lite --max-model-len 8192 -tp 2 --kv-offloading-size 1";
  const HostPool both = pool(line, "0.26.0");
  EXPECT_EQ(both.block, Bytes{576 * 2 * 27} * both.block_tokens.count());
  EXPECT_EQ(both.copies, 2);
  EXPECT_EQ(pool(line, "0.33.0").copies, 1);
  EXPECT_EQ(pool(std::string(kLlama) + "--kv-offloading-size 1 -tp 2").copies, 2);
}

TEST(HostPool, AnswersWereStoredBefore23) {
  const auto prompts_only = [](const std::string& line, const std::string& version) {
    AnyDeployment deployment = resolved(line, version);
    return deployment.as<Deployment>()
        ->scheduler_config(Blocks{1000})
        .connector->offload_prompt_only;
  };
  const std::string line = std::string(kLlama) + "--kv-offloading-size 1";
  EXPECT_FALSE(prompts_only(line, "0.15.0"));
  EXPECT_FALSE(prompts_only(line, "0.22.0"));
  EXPECT_TRUE(prompts_only(line, "0.23.0"));
  EXPECT_FALSE(prompts_only(
      connector(R"("cpu_bytes_to_use":1000000000,"offload_prompt_only":false)"), "0.33.0"));
}

TEST(HostPool, IsPinnedHostMemoryAndNoneOfTheCards) {
  const Plan with = make_plan(resolved(std::string(kLlama) + "--kv-offloading-size 4", "0.33.0"));
  const Plan without = make_plan(resolved(kLlama, "0.33.0"));
  ASSERT_TRUE(with.outcome().fits());
  const auto views = [](const Plan& plan) { return plan.ranks().front()->memory.ledger().views(); };
  EXPECT_EQ(views(with).pinned_host - views(without).pinned_host, kGiB * 4);
  EXPECT_EQ(views(with).device_used, views(without).device_used);
  EXPECT_EQ(with.report().kv_blocks, without.report().kv_blocks);
}

TEST(HostPool, RefusalsNameWhatWouldBeRight) {
  const std::string size = std::string(kLlama) + "--kv-offloading-size ";
  const std::vector<std::array<std::string, 3>> cases = {
      {size + "0", "0.33.0", "above 0"},
      {size + "-1", "0.33.0", "kv-offloading-size"},
      {size + "1048577", "0.33.0", "at most 1048576"},
      {size + "1e300", "0.33.0", "kv-offloading-size"},
      {size + "nan", "0.33.0", "kv-offloading-size"},
      {size + "0.001", "0.33.0", "at least one chunk, 2097152 B"},
      {size + "1 --kv-offloading-backend lmcache", "0.33.0", "native"},
      {size + "1 --kv-offloading-backend nativ", "0.33.0", "native"},
      {size + "1", "0.13.0", "0.14.0"},
      {size + R"(1 --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')",
       "0.33.0", "one connector"},
      {connector(""), "0.33.0", "cpu_bytes_to_use"},
      {connector(R"("cpu_bytes_to_use":0)"), "0.33.0", "a whole number, 1 to 1125899906842624"},
      {connector(R"("cpu_bytes_to_use":-5)"), "0.33.0", "whole number"},
      {connector(R"("cpu_bytes_to_use":18446744073709551615)"), "0.33.0", "whole number"},
      {connector(R"("cpu_bytes_to_use":"1GB")"), "0.33.0", "whole number"},
      {connector(R"("cpu_bytes_to_use":1073741824,"block_size":24)"), "0.33.0", "a multiple of 16"},
      {connector(R"("cpu_bytes_to_use":1073741824,"eviction_policy":"fifo")"), "0.33.0",
       "lru, arc"},
      {connector(R"("cpu_bytes_to_use":1073741824,"store_threshold":2)"), "0.17.0", "0.18.0"},
      {connector(R"("cpu_bytes_to_use":1073741824,"spec_name":"TieringOffloadingSpec")"), "0.33.0",
       "CPUOffloadingSpec"},
      {connector(R"("cpu_bytes_to_use":1073741824,"secondary_tiers":[{"type":"fs"}])"), "0.33.0",
       "secondary_tiers"}};
  for (const auto& [line, version, mentioned] : cases) {
    EXPECT_NE(refusal(line, version).find(mentioned), std::string::npos)
        << line << ": " << refusal(line, version);
  }
  EXPECT_NE(refusal(size + "1", "0.33.0", "GB10").find("share their memory"), std::string::npos);
}

}  // namespace
}  // namespace oomcast::vllm
