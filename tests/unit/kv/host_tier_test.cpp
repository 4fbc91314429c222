#include "sim/kv/host_tier.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace oomcast::kv {
namespace {

using Numbers = std::vector<std::int64_t>;

// Chunks of 16 tokens, keys first, first + 1, ..
std::vector<HostTier::Item> prompt(BlockKey first, std::int64_t chunks) {
  std::vector<HostTier::Item> items;
  for (std::int64_t i = 0; i < chunks; ++i) {
    items.push_back({first + static_cast<BlockKey>(i), 16 * (i + 1), 0});
  }
  return items;
}

std::vector<BlockKey> keys_of(const std::vector<HostTier::Item>& items) {
  std::vector<BlockKey> keys;
  for (const HostTier::Item& item : items) {
    keys.push_back(item.key);
  }
  return keys;
}

// Stores what is not there and waits for it; the numbers it went to.
Numbers store(HostTier& tier, HostTier::Access& access, const std::vector<HostTier::Item>& items) {
  std::vector<HostTier::Item> accepted;
  Numbers numbers;
  EXPECT_TRUE(tier.offer(access, items, accepted, numbers));
  tier.written(keys_of(accepted));
  return numbers;
}

// A request of its own that stores a prompt and ends.
Numbers store(HostTier& tier, const std::vector<HostTier::Item>& items) {
  HostTier::Access access;
  const Numbers numbers = store(tier, access, items);
  tier.finish(access);
  return numbers;
}

void load(HostTier& tier, const std::vector<HostTier::Item>& items) {
  HostTier::Access access;
  Numbers numbers;
  tier.pin(access, items, numbers);
  tier.unpin(keys_of(items));
  tier.finish(access);
}

bool has(const HostTier& tier, BlockKey key) {
  return tier.find(key) == HostTier::Presence::kReady;
}

TEST(HostTier, NumbersAscendThenComeBackLatestFirst) {
  HostTier tier(4, HostTier::Policy::kLru, 0);
  EXPECT_EQ(store(tier, prompt(100, 2)), (Numbers{0, 1}));
  EXPECT_EQ(store(tier, prompt(200, 2)), (Numbers{2, 3}));
  // The tail of the older prompt goes first, so number 1 is freed before number 0.
  EXPECT_EQ(store(tier, prompt(300, 2)), (Numbers{0, 1}));
  EXPECT_FALSE(has(tier, 100));
  EXPECT_TRUE(has(tier, 200));
  EXPECT_EQ(tier.used(), 4);
}

TEST(HostTier, LruEvictsTailsOfTheLeastRecentRequest) {
  HostTier tier(4, HostTier::Policy::kLru, 0);
  store(tier, prompt(100, 2));
  store(tier, prompt(200, 2));
  load(tier, prompt(100, 2));  // now 200 is the older one
  store(tier, prompt(300, 1));
  EXPECT_TRUE(has(tier, 200));
  EXPECT_FALSE(has(tier, 201));
  EXPECT_TRUE(has(tier, 100) && has(tier, 101));
}

TEST(HostTier, NeitherReadNorWrittenChunksAreEvicted) {
  HostTier tier(3, HostTier::Policy::kLru, 0);
  store(tier, prompt(100, 1));
  HostTier::Access reader;
  Numbers numbers;
  tier.pin(reader, prompt(100, 1), numbers);
  HostTier::Access writer;
  std::vector<HostTier::Item> accepted;
  EXPECT_TRUE(tier.offer(writer, prompt(200, 2), accepted, numbers));
  EXPECT_EQ(tier.find(200), HostTier::Presence::kWriting);
  HostTier::Access third;
  EXPECT_FALSE(tier.offer(third, prompt(300, 1), accepted, numbers));
  EXPECT_TRUE(accepted.empty());
  tier.unpin({100});
  EXPECT_TRUE(tier.offer(third, prompt(300, 1), accepted, numbers));
  EXPECT_EQ(tier.find(100), HostTier::Presence::kAbsent);
  EXPECT_EQ(tier.writing(), 3);
}

TEST(HostTier, AnOfferIsStoredWholeOrNotAtAllAndNeverPushesItselfOut) {
  HostTier tier(2, HostTier::Policy::kLru, 0);
  HostTier::Access access;
  store(tier, access, prompt(100, 1));
  std::vector<HostTier::Item> accepted;
  Numbers numbers;
  EXPECT_FALSE(tier.offer(access, prompt(100, 3), accepted, numbers));
  EXPECT_TRUE(has(tier, 100));
  EXPECT_EQ(tier.used(), 1);
}

TEST(HostTier, ThresholdStoresAtTheSecondOffer) {
  HostTier tier(4, HostTier::Policy::kLru, 2);
  EXPECT_TRUE(store(tier, prompt(100, 2)).empty());
  EXPECT_EQ(store(tier, prompt(100, 2)), (Numbers{0, 1}));
}

TEST(HostTier, ArcKeepsWhatWasReused) {
  HostTier tier(4, HostTier::Policy::kArc, 0);
  store(tier, prompt(100, 2));
  load(tier, prompt(100, 2));  // now in T2
  for (BlockKey key = 200; key < 210; ++key) {
    store(tier, prompt(key, 1));  // a scan goes through T1 alone
  }
  EXPECT_TRUE(has(tier, 100) && has(tier, 101));
  HostTier lru(4, HostTier::Policy::kLru, 0);
  store(lru, prompt(100, 2));
  load(lru, prompt(100, 2));
  for (BlockKey key = 200; key < 210; ++key) {
    store(lru, prompt(key, 1));
  }
  EXPECT_FALSE(has(lru, 100));
}

TEST(HostTier, ArcMakesRoomForWhatItLetGoTooEarly) {
  HostTier tier(2, HostTier::Policy::kArc, 0);
  store(tier, prompt(100, 1));
  load(tier, prompt(100, 1));   // T2: 100
  store(tier, prompt(200, 1));  // T1: 200
  store(tier, prompt(300, 1));  // T1 of size 1 >= target 0: 200 goes to B1
  EXPECT_FALSE(has(tier, 200));
  // A miss in B1 raises the target to 1: T1 (300, size 1 >= 1) still goes first.
  store(tier, prompt(200, 1));
  EXPECT_FALSE(has(tier, 300));
  // The next one raises it to 2, so T1 (size 1) is spared and T2 gives.
  store(tier, prompt(300, 1));
  EXPECT_TRUE(has(tier, 200) && has(tier, 300));
  EXPECT_FALSE(has(tier, 100));
}

}  // namespace
}  // namespace oomcast::kv
