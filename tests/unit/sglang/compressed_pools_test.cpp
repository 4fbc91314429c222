// DeepSeek V4's pools, on paper: 43 layers, of which 21 compress 4 tokens and 20 compress 128, a
// window of 128 tokens, latents of 512 with 64 rotated.
#include "sim/engines/sglang/compressed_pools.hpp"

#include <gtest/gtest.h>

#include "models/config_reader.hpp"

namespace oomcast::sglang {
namespace {

constexpr double kFineToken = 21 * (584 + 132) / 4.0;  // latent and indexer's key
constexpr double kCoarseToken = 20 * 584 / 128.0;

Deployment flash(const std::string& flags, const std::string& version) {
  launch::LaunchOptions options;
  options.engine_version = version;
  launch::Launch line = launch::parse_launch(
      "sglang serve --model-path deepseek-ai/DeepSeek-V4-Flash --tp 4 " + flags, options);
  return resolve(std::move(line),
                 std::make_shared<models::ModelSpec>(models::read_model_config(
                     OOMCAST_TEST_DATA "/models/configs/deepseek-ai__DeepSeek-V4-Flash.json")),
                 models::find_gpu("H200 SXM"), CardState{}, Assumed{});
}

constexpr const char* kDraft =
    "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4";

TEST(CompressedPools, SettingsAreTheModels) {
  const Deployment deployment = flash("", "0.5.12");
  EXPECT_EQ(deployment.decode_backend, "dsv4");
  EXPECT_EQ(deployment.page_size, Tokens{256});
  EXPECT_EQ(deployment.kv_dtype, models::DType::kFloat8);
  EXPECT_EQ(deployment.max_running, 256);
  EXPECT_DOUBLE_EQ(deployment.window_ratio, 0.1);
  EXPECT_DOUBLE_EQ(flash("--swa-full-tokens-ratio 0.3", "0.5.12").window_ratio, 0.3);
}

TEST(CompressedPools, StatesOnceCameWithTheWindow) {
  // The draft's layer counts for the window; fp32 values and scores of 8 tokens (twice 512, twice
  // 128) and of 128 tokens (512) for each window of 128.
  const CacheSizes sizes = compressed_sizes(flash("", "0.5.12"), 0);
  EXPECT_DOUBLE_EQ(sizes.full_token, kFineToken + kCoarseToken);
  EXPECT_DOUBLE_EQ(sizes.window_token,
                   44 * 584 + 21 * 8 * (8192 + 2048) / 128.0 + 20 * 128 * 4096 / 128.0);
  // Twice the rings for drafts, and all of it once more for the draft's layer.
  const CacheSizes drafted = compressed_sizes(flash(kDraft, "0.5.12"), 0);
  EXPECT_NEAR(drafted.full_token + 0.1 * drafted.window_token, 25491.85 * 45 / 44, 0.01);
}

TEST(CompressedPools, StatesOfCoarseLatentsAreOfRequests) {
  const CacheSizes sizes = compressed_sizes(flash("", "0.5.16"), 0);
  EXPECT_DOUBLE_EQ(sizes.window_token, 43 * 584 + 21 * 8 * (8192 + 2048) / 128.0);
  // 257 rings of 128 and one more, in whole entries.
  EXPECT_EQ(sizes.fixed, Bytes{20LL * 4096 * 128 * 259});
  EXPECT_FALSE(sizes.window_cap.has_value());
}

TEST(CompressedPools, RequestsBoundTheWindow) {
  const CacheSizes sizes = compressed_sizes(flash("--chunked-prefill-size 8192", "0.5.23"), 0);
  // A request: window, 128 until evicted, a page and one more; two chunks in flight and a page;
  // four prefixes of a window and a page for each request.
  ASSERT_TRUE(sizes.window_cap.has_value());
  EXPECT_EQ(*sizes.window_cap,
            Tokens{256 * (128 + 128 + 256 + 256) + 2 * 8192 + 256 + 4 * 256 * (128 + 256)});
  EXPECT_FALSE(
      compressed_sizes(flash("--swa-full-tokens-ratio 0.3", "0.5.23"), 0).window_cap.has_value());
}

TEST(CompressedPools, PoolsHoldThePlan) {
  const Deployment deployment = flash("", "0.5.12");
  CachePlan plan;
  plan.tokens = Tokens{2560};
  plan.window_tokens = Tokens{256};
  plan.max_running = 256;
  Bytes sum;
  for (const opgraph::LiveTensor& tensor : compressed_pools(deployment, plan, 0)) {
    sum += tensor.bytes;
  }
  const std::int64_t windows = 43 * 2 * 149760;            // 256 x 584 in 576s
  const std::int64_t fine = 21 * 11 * (37440 + 64 * 132);  // 64 x 584 in 576s
  const std::int64_t coarse = 20 * 11 * 1728;              // 2 x 584 in 576s
  const std::int64_t states = 21 * 28 * (8192 + 2048) + 20 * 512 * 4096;
  EXPECT_EQ(sum, Bytes{windows + fine + coarse + states});
}

}  // namespace
}  // namespace oomcast::sglang
