#include "sim/kv/block_pool.hpp"

#include <gtest/gtest.h>

namespace oomcast::kv {
namespace {

using Ids = std::vector<BlockId>;

Ids take(BlockPool& pool, std::int64_t count) {
  Ids table;
  pool.take(count, table);
  return table;
}

void release(BlockPool& pool, const Ids& blocks) {
  BlockPool::Release release(pool);
  for (const BlockId block : blocks) {
    release(block);
  }
}

TEST(BlockPool, NeverHandsOutTheNullBlockAndStartsInOrder) {
  BlockPool pool(5, true);
  EXPECT_EQ(pool.total(), 4);
  EXPECT_EQ(take(pool, 4), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(pool.free(), 0);
  pool.check();
}

TEST(BlockPool, OneAtATimeIsManyAtOnce) {
  BlockPool pool(8, true);
  EXPECT_EQ(pool.take(), 1);
  EXPECT_EQ(take(pool, 2), (Ids{2, 3}));
  EXPECT_EQ(pool.free(), 4);
}

TEST(BlockPool, UnhashedBlocksAreReusedFirstInTheOrderOfTheirRelease) {
  BlockPool pool(8, true);
  take(pool, 4);
  release(pool, {4, 3, 2});
  EXPECT_EQ(pool.free_list(), (Ids{4, 3, 2, 5, 6, 7}));
  release(pool, {1});
  EXPECT_EQ(pool.free_list(), (Ids{1, 4, 3, 2, 5, 6, 7}));
  pool.check();
}

TEST(BlockPool, OlderEnginesPutAllFreedBlocksAtTheBack) {
  BlockPool pool(6, false);
  take(pool, 3);
  release(pool, {3, 2, 1});
  EXPECT_EQ(pool.free_list(), (Ids{4, 5, 3, 2, 1}));
}

TEST(BlockPool, HashedBlocksAreReusedLastAndLoseTheirHashThen) {
  BlockPool pool(5, true);
  take(pool, 4);
  pool.insert(100, 1, 16);
  pool.insert(200, 2, 32);
  release(pool, {4, 3, 2, 1});
  EXPECT_EQ(pool.free_list(), (Ids{4, 3, 2, 1}));  // 4 and 3 in front, 2 and 1 behind
  EXPECT_EQ(pool.cached_free(), 2);
  take(pool, 3);  // 4, 3 and then 2, which is evicted
  EXPECT_EQ(pool.find(200), kNullBlock);
  EXPECT_EQ(pool.find(100), 1);
  EXPECT_EQ(pool.cached_free(), 1);
  pool.check();
}

TEST(BlockPool, AHitLeavesTheFreeListFromTheMiddle) {
  BlockPool pool(6, true);
  take(pool, 5);
  for (BlockId block = 1; block <= 5; ++block) {
    pool.insert(static_cast<BlockKey>(block), block, 16);
  }
  release(pool, {5, 4, 3, 2, 1});
  pool.touch(pool.find(3));
  EXPECT_EQ(pool.free_list(), (Ids{5, 4, 2, 1}));
  EXPECT_EQ(pool.free(), 4);
  pool.touch(3);  // a second user takes nothing from the list
  EXPECT_EQ(pool.free(), 4);
  release(pool, {3});
  EXPECT_EQ(pool.free(), 4);
  release(pool, {3});
  EXPECT_EQ(pool.free_list(), (Ids{5, 4, 2, 1, 3}));
  pool.check();
}

TEST(BlockPool, EqualHashesAreServedInOrderOfInsertion) {
  BlockPool pool(6, true);
  take(pool, 3);
  for (const BlockId block : {2, 1, 3}) {
    pool.insert(77, block, 16);
  }
  EXPECT_EQ(pool.find(77), 2);
  pool.forget(2);
  EXPECT_EQ(pool.find(77), 1);
  pool.insert(77, 2, 16);  // comes back as the last one
  pool.forget(1);
  EXPECT_EQ(pool.find(77), 3);
  pool.forget(3);
  EXPECT_EQ(pool.find(77), 2);
  pool.forget(2);
  EXPECT_EQ(pool.find(77), kNullBlock);
  pool.check();
}

TEST(BlockPool, FurtherKeysOfABlockGoWithIt) {
  BlockPool pool(4, true);
  take(pool, 2);
  pool.insert(1, 1, 16);
  pool.insert(2, 1, 32);
  pool.insert(2, 1, 32);  // known already
  EXPECT_TRUE(pool.has_key(1, 2));
  EXPECT_EQ(pool.first_key(1), 1U);
  EXPECT_EQ(pool.first_key_tokens(1), 16);
  pool.move_keys(1, 2);
  EXPECT_FALSE(pool.hashed(1));
  EXPECT_EQ(pool.find(1), 2);
  EXPECT_EQ(pool.find(2), 2);
  pool.check();
  pool.forget(2);
  EXPECT_EQ(pool.find(2), kNullBlock);
  pool.check();
}

TEST(BlockPool, ATableNobodySharesIsFreedLikeAnyOther) {
  BlockPool pool(8, true);
  const Ids table = take(pool, 5);
  {
    BlockPool::Release release(pool);
    release.owned(table, 0, 3);  // blocks 4 and 5 were not full
  }
  EXPECT_EQ(pool.free_list(), (Ids{5, 4, 6, 7, 3, 2, 1}));
  EXPECT_EQ(pool.cached_free(), 3);
  pool.check();
  take(pool, 7);
  EXPECT_EQ(pool.cached_free(), 0);
  pool.check();
}

TEST(BlockPool, HolesInTheListNeverPileUp) {
  // Blocks 1 to 3 are hit and freed again a thousand times: each time three places of the list are
  // left behind.
  BlockPool pool(4, true);
  take(pool, 3);
  for (BlockId block = 1; block <= 3; ++block) {
    pool.insert(static_cast<BlockKey>(block), block, 16);
  }
  release(pool, {3, 2, 1});
  for (int i = 0; i < 1000; ++i) {
    pool.touch(2);
    pool.touch(1);
    release(pool, {2, 1});
    ASSERT_EQ(pool.free_list(), (Ids{3, 2, 1}));
  }
  pool.check();
}

TEST(BlockPoolDeathTest, ALostBlockIsFound) {
  BlockPool pool(4, true);
  pool.take();
  {
    BlockPool::Release twice(pool);
    twice(1);
  }
  pool.retain(1);  // a reference to a free block
  EXPECT_DEATH(pool.check(), "block 1 is free with 1 references");
}

}  // namespace
}  // namespace oomcast::kv
