// DeepSeek V3.2's attention on each card and release, on paper.
#include "sim/engines/vllm/sparse_mla.hpp"

#include <gtest/gtest.h>

#include "sim/engines/vllm/resident.hpp"
#include "sim/run/plan.hpp"

namespace oomcast::vllm {
namespace {

Deployment v32(const std::string& gpu, const std::string& version, const std::string& more = "") {
  DeploymentInput input;
  input.launch_line =
      "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8 " + more;
  input.model_config =
      std::string(OOMCAST_TEST_DATA) + "/models/configs/deepseek-ai__DeepSeek-V3.2.json";
  input.gpu = gpu;
  input.engine_version = version;
  return std::move(*resolve_input(input).as<vllm::Deployment>());
}

constexpr const char* kFp8 = "--kv-cache-dtype fp8 ";

// 128 heads: 16 a rank of 8.
TEST(SparseMla, TheBackendFollowsCardReleaseAndCache) {
  EXPECT_EQ(v32("H200", "0.24.0").attention_backend, "FLASHMLA_SPARSE");
  EXPECT_EQ(v32("H200", "0.25.0").attention_backend, "FLASH_ATTN_MLA_SPARSE");
  EXPECT_EQ(v32("H200", "0.25.0", kFp8).attention_backend, "FLASHMLA_SPARSE");
  EXPECT_EQ(v32("B200", "0.16.0").attention_backend, "FLASHMLA_SPARSE");
  EXPECT_EQ(v32("B200", "0.17.0").attention_backend, "FLASHINFER_MLA_SPARSE");
  EXPECT_EQ(v32("B200", "0.17.0", kFp8).attention_backend, "FLASHMLA_SPARSE");
  EXPECT_EQ(v32("B200", "0.18.0", kFp8).attention_backend, "FLASHINFER_MLA_SPARSE");
  // 32 heads a rank of 4: FlashMLA's padding to 64 pays, but for 8-bit caches from 0.19 on.
  const std::string four = "-tp 4 ";
  EXPECT_EQ(v32("B200", "0.19.0", four).attention_backend, "FLASHMLA_SPARSE");
  EXPECT_EQ(v32("B200", "0.18.0", four + kFp8).attention_backend, "FLASHMLA_SPARSE");
  EXPECT_EQ(v32("B200", "0.19.0", four + kFp8).attention_backend, "FLASHINFER_MLA_SPARSE");
  EXPECT_EQ(v32("B200", "0.19.0", "--kv-cache-dtype fp8_ds_mla").attention_backend,
            "FLASHMLA_SPARSE");
  EXPECT_EQ(v32("RTX-PRO-6000", "0.26.0").attention_backend, "FLASHINFER_MLA_SPARSE_SM120");
}

// 61 layers of latents and of the indexer's 128 + 4 B; blocks of 64.
TEST(SparseMla, TokensTakeWhatTheBackendStores) {
  const auto token = [](const Deployment& deployment) {
    EXPECT_EQ(deployment.block_size, Tokens{64});
    Bytes sum;
    for (const models::KvLayerSpec& layer : deployment.kv_layers(0)) {
      sum += deployment.kv_token_bytes(layer);
    }
    return sum;
  };
  EXPECT_EQ(token(v32("H200", "0.26.0")), Bytes{61 * (576 * 2 + 132)});
  EXPECT_EQ(token(v32("H200", "0.26.0", kFp8)), Bytes{61 * (656 + 132)});
  EXPECT_EQ(token(v32("B200", "0.26.0", kFp8)), Bytes{61 * (576 + 132)});
  EXPECT_EQ(token(v32("RTX-PRO-6000", "0.26.0")), Bytes{61 * (656 + 132)});
}

TEST(SparseMla, FlashMlaTakesItsBuffersWhenLayersAreMade) {
  // 8192 tokens x 16 heads x 576 x 2 B; 5 x 163840 x 576 x 2 B of gathered context.
  constexpr Bytes kQueries{8192LL * 16 * 576 * 2};
  constexpr Bytes kContext{5LL * 163840 * 576 * 2};
  EXPECT_EQ(sparse_mla_buffers(v32("H200", "0.12.0", kFp8)), Bytes{0});
  EXPECT_EQ(sparse_mla_buffers(v32("H200", "0.13.0")), Bytes{0});
  EXPECT_EQ(sparse_mla_buffers(v32("H200", "0.13.0", kFp8)), kContext);
  EXPECT_EQ(sparse_mla_buffers(v32("H200", "0.18.0")), kQueries);
  EXPECT_EQ(sparse_mla_buffers(v32("H200", "0.18.0", kFp8)), kQueries + kContext);
  // From 0.31 on queries and outputs padded to 64 heads, and outputs of 16, beside them.
  constexpr Bytes kPadded{8192LL * 2 * (64 * 576 + 64 * 512 + 16 * 512)};
  EXPECT_EQ(sparse_mla_buffers(v32("H200", "0.31.0", kFp8)), kQueries + kContext + kPadded);
  EXPECT_EQ(sparse_mla_buffers(v32("B200", "0.26.0", kFp8)), Bytes{0});
}

// Published with a startup log of GLM-5.2 (vLLM 0.26, 819,200 tokens): its indexer is the same.
TEST(SparseMla, TheIndexerGathersKeysOfManyPrompts) {
  const Deployment usual = v32("B200", "0.26.0", kFp8);
  EXPECT_EQ(gathered_keys(usual), Bytes{40LL * 163840 * 132} + kMiB);
  EXPECT_EQ(gathered_keys(v32("B200", "0.19.0", kFp8)), Bytes{40LL * 163840 * 132});
  const Deployment longer = v32("B200", "0.26.0", "--max-model-len 819200 ");
  EXPECT_EQ(gathered_keys(longer), Bytes{40LL * 819200 * 132} + kMiB);
  EXPECT_GE(shared_workspace(longer), gathered_keys(longer));
  EXPECT_EQ(gathered_keys(v32("B200", "0.32.0", "--max-model-len 819200 ")),
            Bytes{16LL * 819200 * 132} + kMiB);
}

}  // namespace
}  // namespace oomcast::vllm
