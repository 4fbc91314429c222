// Tokens, windows, states and requests from free memory, on paper.
#include "sim/engines/sglang/cache_plan.hpp"

#include <gtest/gtest.h>

namespace oomcast::sglang {
namespace {

constexpr double kGib = 1073741824.0;

// 1 GiB before and after loading, of which the given share may be used, and cells on paper.
Deployment plain() {
  Deployment deployment;
  deployment.rules = startup_rules_for(Version{{0, 5, 23}});
  deployment.launch.engine = launch::Engine::kSglang;
  deployment.mem_fraction = 0.5;
  deployment.max_model_len = Tokens{4096};
  return deployment;
}

CacheSizes cells(double full) {
  CacheSizes sizes;
  sizes.full_token = full;
  sizes.full_layers = 1;
  return sizes;
}

FreeMemory free_gib(double before, double after) {
  return {Bytes{static_cast<std::int64_t>(before * kGib)},
          Bytes{static_cast<std::int64_t>(after * kGib)}};
}

CachePlan planned(const Deployment& deployment, const CacheSizes& sizes, const FreeMemory& free) {
  return std::get<CachePlan>(
      cache_plan(deployment, sizes, std::get<CacheBudget>(cache_budget(deployment, sizes, free))));
}

TEST(CachePlan, BudgetIsWhatTheFractionLeaves) {
  // 8 - 10 x 0.5 = 3 GiB of 1 KiB a token, in pages of 16.
  Deployment deployment = plain();
  deployment.page_size = Tokens{16};
  const CachePlan plan = planned(deployment, cells(1024), free_gib(10, 8));
  EXPECT_EQ(plan.tokens, Tokens{3 * 1048576});
  // 3145728 / 4096 x 512 is beyond the 4096 that are tracked at most.
  EXPECT_EQ(plan.max_running, 4096);
  EXPECT_EQ(plan.rows, 4097);
}

TEST(CachePlan, ARowBeyondTheRequestsMayServeOneMore) {
  Deployment deployment = plain();
  deployment.rules.request_padding_row = PaddingRow::kUsable;
  const CachePlan usable = planned(deployment, cells(1024), free_gib(10, 8));
  EXPECT_EQ(usable.max_running, 4097);
  EXPECT_EQ(usable.rows, 4097);
  deployment.rules.request_padding_row = PaddingRow::kNone;
  const CachePlan none = planned(deployment, cells(1024), free_gib(10, 8));
  EXPECT_EQ(none.max_running, 4096);
  EXPECT_EQ(none.rows, 4096);
}

TEST(CachePlan, RequestsAreHalfTheTokensAtMost) {
  Deployment deployment = plain();
  deployment.max_running = 100;
  const FreeMemory free = {Bytes{1000}, Bytes{1000}};
  const CachePlan plan = planned(deployment, cells(10), free);
  EXPECT_EQ(plan.tokens, Tokens{50});
  EXPECT_EQ(plan.max_running, 25);
}

TEST(CachePlan, OneTokenMoreDoesNotFit) {
  const Deployment deployment = plain();
  const CacheSizes sizes = cells(100);
  const CacheBudget enough{Bytes{100}, 0};
  const CacheBudget less{Bytes{99}, 0};
  const auto refused = cache_plan(deployment, sizes, less);
  ASSERT_TRUE(std::holds_alternative<CacheRefusal>(refused));
  EXPECT_EQ(std::get<CacheRefusal>(refused).short_by, Bytes{1});
  EXPECT_EQ(std::get<CacheRefusal>(refused).message,
            "Not enough memory. Please try to increase --mem-fraction-static. Current value: "
            "mem_fraction_static=0.5");
  // One token cannot hold a request of one token and its output.
  EXPECT_EQ(std::get<CacheRefusal>(cache_plan(deployment, sizes, enough)).message,
            "Memory pool size is too small");
}

TEST(CachePlan, WeightsMayLeaveNothing) {
  const Deployment deployment = plain();
  const auto refused = cache_budget(deployment, cells(100), free_gib(10, 4));
  ASSERT_TRUE(std::holds_alternative<CacheRefusal>(refused));
  EXPECT_EQ(std::get<CacheRefusal>(refused).kind, OutcomeKind::kKvTooSmall);
  // 1 - 4/10.
  EXPECT_NE(std::get<CacheRefusal>(refused).message.find("above 0.600"), std::string::npos);
}

CacheSizes windowed_cells() {
  CacheSizes sizes = cells(100);
  sizes.window_token = 50;
  sizes.window_layers = 1;
  sizes.window = Tokens{128};
  return sizes;
}

TEST(CachePlan, WindowsTakeTheirRatio) {
  Deployment deployment = plain();
  deployment.window_pool = true;
  const CacheSizes sizes = windowed_cells();
  // A full token costs 100 + 0.8 x 50 = 140.
  const CacheBudget budget{Bytes{1'400'000}, 0};
  const CachePlan plan = std::get<CachePlan>(cache_plan(deployment, sizes, budget));
  EXPECT_EQ(plan.tokens, Tokens{10000});
  EXPECT_EQ(plan.window_tokens, Tokens{8000});
  // A window and a page must fit: 129 slots do not hold a window of 128 and its page.
  const CacheBudget tight{Bytes{140 * 161}, 0};
  EXPECT_EQ(std::get<CachePlan>(cache_plan(deployment, sizes, CacheBudget{Bytes{140 * 163}, 0}))
                .window_tokens,
            Tokens{130});
  EXPECT_TRUE(std::holds_alternative<CacheRefusal>(cache_plan(deployment, sizes, tight)));
}

TEST(CachePlan, CappedWindowsAreWhatIsMissing) {
  Deployment deployment = plain();
  deployment.window_pool = true;
  CacheSizes sizes = windowed_cells();
  sizes.window_cap = Tokens{1000};
  sizes.fixed = Bytes{7};
  const auto refused = cache_plan(deployment, sizes, CacheBudget{Bytes{40'000}, 0});
  ASSERT_TRUE(std::holds_alternative<CacheRefusal>(refused));
  EXPECT_EQ(std::get<CacheRefusal>(refused).short_by, Bytes{1000 * 50 + 100 + 7 - 40'000});
}

TEST(CachePlan, StatesComeFirst) {
  Deployment deployment = plain();
  deployment.slots_per_request = 5;
  CacheSizes sizes = cells(1024);
  sizes.state = Bytes{std::int64_t{10} << 20};
  // 3 GiB x 0.9 / 1.9 = 1455.16 MiB: one slot of 10 MiB for padding, 144 for requests.
  const auto budget = std::get<CacheBudget>(cache_budget(deployment, sizes, free_gib(10, 8)));
  EXPECT_EQ(budget.state_slots, 144);
  EXPECT_EQ(budget.kv, Bytes{(std::int64_t{3072} - 1450) << 20});
  EXPECT_EQ(planned(deployment, sizes, free_gib(10, 8)).max_running, 28);
}

}  // namespace
}  // namespace oomcast::sglang
