#include "sim/ledger/torch_pool.hpp"

#include <gtest/gtest.h>

namespace oomcast {
namespace {

TEST(TorchPool, RoundsToBlocksAndGranules) {
  Ledger ledger(kMiB * 64);
  TorchPool pool(ledger, Backing::kSegment);
  ASSERT_TRUE(pool.allocate(Leaf::kModelWeights, Bytes{513}));
  EXPECT_EQ(ledger.views().torch_allocated, Bytes{1024});
  EXPECT_EQ(ledger.views().torch_reserved, kMiB * 2);
  // 2 MiB - 1 KiB is still cached: exactly that much costs nothing, one block more costs a granule.
  ASSERT_TRUE(pool.allocate(Leaf::kRuntimeLogits, kMiB * 2 - Bytes{1024}));
  EXPECT_EQ(ledger.views().torch_reserved, kMiB * 2);
  ASSERT_TRUE(pool.allocate(Leaf::kRuntimeLogits, Bytes{1}));
  EXPECT_EQ(ledger.views().torch_reserved, kMiB * 4);
}

TEST(TorchPool, CachedMemoryIsReusedAndReturned) {
  Ledger ledger(kMiB * 64);
  TorchPool pool(ledger, Backing::kSegment);
  ASSERT_TRUE(pool.allocate(Leaf::kRuntimeActivations, kMiB * 32));
  pool.free(Leaf::kRuntimeActivations, kMiB * 32);
  EXPECT_EQ(ledger.views().torch_reserved, kMiB * 32);
  EXPECT_EQ(ledger.views().torch_allocated, Bytes{0});
  EXPECT_EQ(ledger.device_by_leaf()[index_of(Leaf::kSystemCached)], kMiB * 32);
  ASSERT_TRUE(pool.allocate(Leaf::kRuntimeLogits, kMiB * 8));
  EXPECT_EQ(ledger.views().torch_reserved, kMiB * 32);
  pool.empty_cache();
  EXPECT_EQ(ledger.views().torch_reserved, kMiB * 8);
  ledger.audit();
}

TEST(TorchPool, FitsAtCapacityAndNotOneBlockBeyond) {
  Ledger ledger(kMiB * 64);
  TorchPool pool(ledger, Backing::kSegment);
  EXPECT_EQ(pool.shortage(kMiB * 64 + Bytes{1}), kMiB * 2);
  EXPECT_FALSE(pool.allocate(Leaf::kKvPool, kMiB * 64 + Bytes{1}));
  EXPECT_EQ(ledger.views().device_used, Bytes{0});
  EXPECT_EQ(pool.shortage(kMiB * 64), Bytes{0});
  EXPECT_TRUE(pool.allocate(Leaf::kKvPool, kMiB * 64));
  EXPECT_EQ(ledger.device_free(), Bytes{0});
}

}  // namespace
}  // namespace oomcast
