// DeepSeek-V3 behind DeepEP in the shape of the published large-scale deployments.
#include <gtest/gtest.h>

#include <string>

#include "models/catalog.hpp"
#include "sim/core/error.hpp"
#include "sim/engines/sglang/startup.hpp"
#include "sim/engines/sglang/step_program.hpp"

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
    "--tp 32 --dp 32 --disaggregation-mode prefill --deepep-mode normal --mem-fraction-static 0.85 "
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

// The mode alone sizes the buffer; the role says which of its kernels run.
TEST(SglangExperts, TheModeSizesTheBuffer) {
  const auto of = [](const std::string& role, const std::string& mode) {
    return deployment("--tp 32 --dp 32 --mem-fraction-static 0.8 --disaggregation-mode " + role +
                      " --deepep-mode " + mode);
  };
  const auto bytes = [](const Deployment& at) { return device_bytes(at.exchange.buffers); };
  for (const char* mode : {"normal", "low_latency", "auto"}) {
    EXPECT_EQ(bytes(of("prefill", mode)), bytes(of("decode", mode))) << mode;
  }
  EXPECT_GT(bytes(of("prefill", "auto")), bytes(of("prefill", "normal")));
  EXPECT_EQ(of("prefill", "auto").exchange.kind, Exchange::kSparse);
  EXPECT_EQ(of("decode", "auto").exchange.kind, Exchange::kBatched);
  EXPECT_EQ(of("prefill", "low_latency").exchange.kind, Exchange::kBatched);
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

TEST(SglangExperts, AttentionGroupsBringTheirTokensTogether) {
  // Without DeepEP the experts of a rank run on the tokens of all 8 groups: in a decode of one
  // token the widest moment holds 8 tokens' products: 8 x 8 chosen x (2 x 256 + 256 + 7168) x 2 B
  // and the gathered token, 8 x 7168 x 2 B.
  launch::LaunchOptions options;
  options.engine_version = "0.5.16";
  const auto peak = [&](const std::string& flags) {
    launch::Launch line = launch::parse_launch(
        "sglang serve --model-path deepseek-ai/DeepSeek-V3 --tp 8 " + flags, options);
    const Deployment at = resolve(
        std::move(line),
        std::make_shared<models::ModelSpec>(models::catalog_model("deepseek-ai/DeepSeek-V3")),
        models::find_gpu("H200"), CardState{}, Assumed{});
    const StepProgram program = step_program(at, 0, {.decode = true});
    return program.program.peak({1, 1, 1}).bytes;
  };
  EXPECT_GT(peak("--dp 8 --enable-dp-attention"), Bytes{8 * 8 * (512 + 256 + 7168) * 2});
  EXPECT_LT(peak(""), Bytes{8 * 8 * (512 + 256 + 7168) * 2});
}

TEST(SglangExperts, QueuesOfTheUsersOwn) {
  const std::string queues =
      "{\"num_sms\": 40, \"num_max_nvl_chunked_send_tokens\": 8, "
      "\"num_max_nvl_chunked_recv_tokens\": 512, \"num_max_rdma_chunked_send_tokens\": 8, "
      "\"num_max_rdma_chunked_recv_tokens\": 128}";
  const std::string config =
      "'{\"normal_dispatch\": " + queues + ", \"normal_combine\": " + queues + "}'";
  // 20 channels x 8 peers x (2 x 4 + 3) x 4 + 160 x 512 x 16,392 B; 20 x 4 x 144 + 2 x 80 x 128 x
  // 16,408.
  const Bytes nvlink{align_up(160LL * 44 + 160LL * 512 * 16'392, 128)};
  EXPECT_EQ(device_bytes(
                deployment(std::string(kPrefill) + " --deepep-config " + config).exchange.buffers),
            align_up(nvlink + Bytes{160}, 2 * kMiB) + 32 * kMiB + 1024 * kMiB);
  for (const char* wrong : {"'{\"normal_dispatch\": {\"num_sms\": -1}}'", "'{'", "/nowhere.json",
                            "'{\"normal_dispatch\": 3}'"}) {
    EXPECT_THROW((void)deployment(std::string(kPrefill) + " --deepep-config " + wrong), ConfigError)
        << wrong;
  }
}

TEST(SglangExperts, QueuesAreForCertainGroups) {
  // 40 ranks divide 320 experts, but the library has no queues for them.
  const std::string flags = "--tp 40 --dp 40 --deepep-mode normal --ep-num-redundant-experts 64";
  EXPECT_THROW((void)deployment(flags), ConfigError);
}

}  // namespace
}  // namespace oomcast::sglang
