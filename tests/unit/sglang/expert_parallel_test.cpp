// DeepSeek-V3 behind DeepEP in the shape of the published large-scale deployments.
#include <gtest/gtest.h>

#include <string>

#include "models/catalog.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/sglang/startup.hpp"

namespace oomcast::sglang {
namespace {

Deployment deployment(const std::string& flags, const std::string& environment = "") {
  launch::LaunchOptions options;
  options.engine_version = "0.5.9";
  launch::Launch line = launch::parse_launch(
      environment +
          " sglang serve --model-path deepseek-ai/DeepSeek-V3 --enable-dp-attention "
          "--moe-a2a-backend deepep --moe-dense-tp-size 1 --enable-dp-lm-head " +
          flags,
      options);
  return resolve(
      std::move(line),
      std::make_shared<models::ModelSpec>(models::catalog_model("deepseek-ai/DeepSeek-V3")),
      models::find_gpu("H100"), CardState{}, Assumed{});
}

constexpr const char* kPrefill =
    "--tp 32 --dp 32 --disaggregation-mode prefill --deepep-mode normal "
    "--ep-num-redundant-experts 32";
constexpr const char* kDecode =
    "--tp 72 --dp 72 --disaggregation-mode decode --deepep-mode low_latency "
    "--ep-num-redundant-experts 32 --cuda-graph-max-bs 128";

TEST(SglangExperts, PrefillNodes) {
  const Deployment prefill = deployment(kPrefill);
  EXPECT_EQ(prefill.ep, 32);
  EXPECT_EQ(prefill.attention_tp(), 1);
  EXPECT_EQ(prefill.exchange_in(false).kind, Exchange::kSparse);
  // 360 MiB of queues and 160 MiB of RDMA queues + 256 MiB in steps of 512 MiB.
  EXPECT_EQ(device_bytes(prefill.exchange.buffers),
            align_up(Bytes{377'675'264 + 160}, 2 * kMiB) + 32 * kMiB + 512 * kMiB);
}

TEST(SglangExperts, DecodeNodes) {
  const Deployment decode = deployment(kDecode);
  EXPECT_EQ(decode.exchange_in(true).kind, Exchange::kBatched);
  // 4 experts on each of 72 ranks, 128 slots each and sender.
  EXPECT_EQ(decode.exchange_in(true).slots(), 4 * 72 * 128);
  // 2.00 GiB + 256 MiB of RDMA in steps of 512 MiB; no NVLink buffer.
  EXPECT_EQ(device_bytes(decode.exchange.buffers), 32 * kMiB + 2560 * kMiB);
}

TEST(SglangExperts, EveryRankHoldsWholeSharedExpertsAndAttention) {
  // Weights of one rank: 4 of 288 routed experts in 58 layers (3 x 7168 x 2048 B each and scales),
  // one shared, attention, dense layers, embedding and head whole.
  const auto ranks = [](const Deployment& at) {
    return models::weights_on_rank(*at.model, at.shard(0)).rounded(Bytes{1});
  };
  const std::int64_t expert = 3LL * 7168 * 2048;
  const Bytes routed{58 * (expert + expert / (128 * 128) * 4)};
  // 9 experts a rank on prefill, 4 on decode; all else is the same.
  EXPECT_EQ(ranks(deployment(kPrefill)) - ranks(deployment(kDecode)), routed * (9 - 4));
}

TEST(SglangExperts, MoreRequestsThanSlotsAreRefused) {
  const std::string many = std::string(kDecode) + " --cuda-graph-max-bs 256";
  try {
    (void)deployment(many);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("at most 128"), std::string::npos) << error.what();
  }
  EXPECT_EQ(
      deployment(many, "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=256").decode_sizes.back(),
      256);
  EXPECT_THROW((void)deployment(many, "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=2048"),
               ConfigError);
}

TEST(SglangExperts, QueuesAreForCertainGroups) {
  // 40 ranks divide 320 experts, but the library has no queues for them.
  const std::string flags = "--tp 40 --dp 40 --deepep-mode normal --ep-num-redundant-experts 64";
  EXPECT_THROW((void)deployment(flags), ConfigError);
}

}  // namespace
}  // namespace oomcast::sglang
