// The host pool of --enable-hierarchical-cache on paper: 131,072 B a token, pages of 16.
#include "sim/engines/sglang/host_pool.hpp"

#include <gtest/gtest.h>

#include "models/catalog.hpp"
#include "sim/core/error.hpp"

namespace oomcast::sglang {
namespace {

Deployment tiered(const std::string& flags, const std::string& version = "0.5.23",
                  std::optional<Bytes> host = std::nullopt) {
  launch::LaunchOptions options;
  options.engine_version = version;
  const std::string model = "meta-llama/Llama-3.1-8B-Instruct";
  Assumed assumed;
  assumed.host_memory = host;
  return resolve(launch::parse_launch("sglang serve --model-path " + model +
                                          " --page-size 16 --enable-hierarchical-cache " + flags,
                                      options),
                 std::make_shared<models::ModelSpec>(models::catalog_model(model)),
                 models::find_gpu("H100-80GB"), CardState{}, assumed);
}

// Beside a pool of 62 pages.
std::variant<std::optional<HostPool>, CacheRefusal> found(const Deployment& deployment) {
  CachePlan plan;
  plan.tokens = Tokens{992};
  return host_pool(deployment, plan, 0);
}
HostPool pool(const Deployment& deployment) {
  return std::get<std::optional<HostPool>>(found(deployment)).value();
}
std::string refused(const Deployment& deployment) {
  return std::get<CacheRefusal>(found(deployment)).message;
}

constexpr Bytes kToken{131'072};

TEST(SglangHostPool, ARatioOfTheCardsSlotsAndAPage) {
  EXPECT_EQ(pool(tiered("")).tokens, Tokens{2000});  // 1984 / 16 + 1 pages
  EXPECT_EQ(pool(tiered("")).bytes, kToken * 2000);
  EXPECT_EQ(pool(tiered("--hicache-ratio 1.5")).tokens, Tokens{1504});
  EXPECT_EQ(pool(tiered("--hicache-ratio 0.5")).tokens, Tokens{512});
  EXPECT_EQ(pool(tiered("--tp 2")).bytes, kToken * 1000);  // half of the heads each
}

TEST(SglangHostPool, AGivenSizeIsInGigabytesOfEachRank) {
  EXPECT_EQ(pool(tiered("--hicache-size 1")).tokens, Tokens{7632});  // 7629 / 16 + 1 pages
  EXPECT_EQ(pool(tiered("--hicache-size 1 --hicache-ratio 9")).tokens, Tokens{7632});
  EXPECT_EQ(pool(tiered("--hicache-size 1 --tp 2")).tokens, Tokens{15264});  // 15258 / 16 + 1
}

// 64 pages of K and as many of V.
TEST(SglangHostPool, PagesPassThroughABufferOnTheCard) {
  const HostPool staged = pool(tiered(""));
  ASSERT_EQ(staged.staging.size(), 2U);
  EXPECT_EQ(staged.staging[0].bytes + staged.staging[1].bytes, kToken * (64 * 16));
  EXPECT_TRUE(pool(tiered("--hicache-mem-layout layer_first")).staging.empty());
  EXPECT_TRUE(pool(tiered("--hicache-io-backend direct")).staging.empty());
  EXPECT_TRUE(pool(tiered("", "0.5.8")).staging.empty());
  EXPECT_EQ(pool(tiered("--hicache-ratio 0.02")).staging[0].bytes, kToken * 16);  // two pages' half
}

TEST(SglangHostPool, OlderReleasesWantMoreThanTheCardHas) {
  EXPECT_EQ(pool(tiered("--hicache-ratio 1", "0.5.8")).tokens, Tokens{1008});
  EXPECT_NE(refused(tiered("--hicache-ratio 0.9", "0.5.8")).find("larger than the device memory"),
            std::string::npos);
}

TEST(SglangHostPool, TheHostMustHaveItBesideTenGibibytes) {
  const Bytes host = kGiB * 10 + kMiB * 100;
  EXPECT_EQ(
      refused(tiered("--hicache-ratio 2", "0.5.23", host)),
      "Not enough host memory available. Requesting 0.26 GB but only have 0.10 GB free. Please "
      "reduce the size of the hierarchical cache.");
  EXPECT_EQ(pool(tiered("--hicache-ratio 2", "0.5.23", kGiB * 11)).tokens, Tokens{2000});
  // 250 MiB for 262,144,000 B exactly; two ranks share the host.
  EXPECT_EQ(pool(tiered("--hicache-ratio 2", "0.5.23", kGiB * 10 + kMiB * 250)).tokens,
            Tokens{2000});
  EXPECT_NE(refused(tiered("--hicache-ratio 2 --tp 2", "0.5.23", kGiB * 10 + kMiB * 249)), "");
}

// 0.95 x 0.8 x 100 MiB of the card's 1008 x 128 KiB: a ratio of 0.603, 598 slots.
TEST(SglangHostPool, TheDefaultRatioIsLoweredToWhatTheHostHas) {
  const Bytes host = kGiB * 10 + kMiB * 100;
  EXPECT_EQ(pool(tiered("", "0.5.23", host)).tokens, Tokens{608});
  EXPECT_NE(refused(tiered("", "0.5.16", host)).find("Not enough host memory"), std::string::npos);
  EXPECT_NE(refused(tiered("", "0.5.23", kGiB * 10)).find("No host memory is left"),
            std::string::npos);
}

TEST(SglangHostPool, WhatContradictsIsRefused) {
  EXPECT_THROW(tiered("--disable-radix-cache"), ConfigError);
  EXPECT_THROW(tiered("--hicache-ratio 0"), ConfigError);
  EXPECT_THROW(tiered("--hicache-ratio 1e9"), ConfigError);
  EXPECT_THROW(tiered("--hicache-size 9223372036854775807"), ConfigError);
  EXPECT_NO_THROW(tiered("--hicache-size 10 --hicache-ratio 0"));
  EXPECT_THROW(tiered("--hicache-write-policy write_around"), ConfigError);
  EXPECT_THROW(tiered("--hicache-host-memory-mode buffer_only"), ConfigError);
  EXPECT_FALSE(tiered("--hicache-storage-backend file").warnings.empty());
}

}  // namespace
}  // namespace oomcast::sglang
