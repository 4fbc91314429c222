#include "sim/ledger/card_memory.hpp"

#include <gtest/gtest.h>

#include "sim/core/random.hpp"

namespace oomcast {
namespace {

Bytes at(const CardMemory& card, Leaf leaf) {
  return card.ledger().device_by_leaf()[index_of(leaf)];
}

// 11.5 MiB come from a segment of 12, and half a MiB stays with the block: PyTorch counts it as
// allocated, it is nobody's tensor.
TEST(CardMemory, ABlocksRemainderIsFragmentation) {
  CardMemory card(kMiB * 64, 0, {});
  const Bytes tensor = Bytes{23 * kMiB.count() / 2};
  const auto made = card.allocate(Leaf::kRuntimeLogits, tensor);
  ASSERT_TRUE(made);
  EXPECT_EQ(at(card, Leaf::kRuntimeLogits), tensor);
  EXPECT_EQ(at(card, Leaf::kSystemFragmentation), Bytes{kMiB.count() / 2});
  EXPECT_EQ(card.ledger().views().torch_allocated, kMiB * 12);
  EXPECT_EQ(card.ledger().views().torch_reserved, kMiB * 12);
  card.free(*made);
  EXPECT_EQ(at(card, Leaf::kSystemCached), kMiB * 12);
  EXPECT_EQ(card.ledger().views().torch_allocated, Bytes{0});
  card.empty_cache();
  EXPECT_EQ(card.ledger().views().device_used, Bytes{0});
}

// 4 MiB of a 20 MiB segment: the rest cannot be returned.
TEST(CardMemory, TheFreePartOfASegmentInUseIsFragmentation) {
  CardMemory card(kMiB * 64, 0, {});
  const auto made = card.allocate(Leaf::kRuntimeActivations, kMiB * 4);
  ASSERT_TRUE(made);
  card.empty_cache();
  EXPECT_EQ(at(card, Leaf::kSystemFragmentation), kMiB * 16);
  EXPECT_EQ(at(card, Leaf::kSystemCached), Bytes{0});
  EXPECT_EQ(card.ledger().views().torch_allocated, kMiB * 4);
  EXPECT_EQ(card.ledger().views().torch_reserved, kMiB * 20);
}

TEST(CardMemory, GraphsKeepTheirPoolUntilTheyAreReleased) {
  CardMemory card(kMiB * 256, 0, {});
  card.use_stream(allocator::StreamId{1});
  card.begin_capture();
  const auto inside = card.allocate(Leaf::kRuntimeActivations, kMiB * 32);
  ASSERT_TRUE(inside);
  card.free(*inside);
  card.end_capture();
  card.use_stream(allocator::StreamId::kDefault);
  card.empty_cache();
  EXPECT_EQ(at(card, Leaf::kGraphPool), kMiB * 32);
  EXPECT_EQ(at(card, Leaf::kRuntimeActivations), Bytes{0});
  // An ordinary tensor does not get it.
  ASSERT_TRUE(card.allocate(Leaf::kRuntimeActivations, kMiB * 32));
  EXPECT_EQ(card.ledger().views().torch_reserved, kMiB * 64);
  card.release_graphs();
  card.empty_cache();
  EXPECT_EQ(at(card, Leaf::kGraphPool), Bytes{0});
  EXPECT_EQ(card.ledger().views().torch_reserved, kMiB * 32);
}

TEST(CardMemory, FitsAtCapacityAndNotAByteBeyond) {
  CardMemory card(kMiB * 64, 3, {});
  ASSERT_TRUE(card.take_outside(Leaf::kSystemContext, Backing::kContext, kMiB * 4));
  EXPECT_FALSE(card.take_outside(Leaf::kCommNccl, Backing::kDriver, kMiB * 60 + Bytes{1}));
  EXPECT_FALSE(card.allocate(Leaf::kKvPool, kMiB * 60 + Bytes{1}));
  EXPECT_EQ(card.shortage(), kMiB * 2);
  EXPECT_NE(card.message().find("GPU 3 has a total capacity of 64.00 MiB"), std::string::npos)
      << card.message();
  EXPECT_TRUE(card.allocate(Leaf::kKvPool, kMiB * 60));
  EXPECT_EQ(card.ledger().device_free(), Bytes{0});
}

// Whatever happens, the books are the allocator's: allocated, reserved, used.
TEST(CardMemory, RandomCallsKeepTheBooks) {
  RandomStream random = random_stream(7, "card memory");
  for (int round = 0; round < 40; ++round) {
    CardMemory card(kMiB * 512, 0, {});
    std::vector<CardMemory::Tensor> live;
    for (int call = 0; call < 400; ++call) {
      const auto choice = random() % 20;
      if (choice < 10) {
        const auto size =
            Bytes{static_cast<std::int64_t>(random() % (std::uint64_t{1} << (random() % 28)))};
        if (const auto made = card.allocate(static_cast<Leaf>(random() % kLeafCount), size)) {
          live.push_back(*made);
        }
      } else if (choice < 18 && !live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        card.free(live.back());
        live.pop_back();
      } else if (choice == 18) {
        card.empty_cache();
      }
      const MemoryViews views = card.ledger().views();
      ASSERT_EQ(views.torch_allocated, card.torch().stats().allocated);
      ASSERT_EQ(views.torch_reserved, card.torch().stats().reserved);
      ASSERT_EQ(views.device_used, card.torch().device().used());
      ASSERT_GE(views.torch_reserved, views.torch_allocated);
    }
    card.ledger().audit();
  }
}

// Segments of 11 MiB take 12 of the card: PyTorch counts 11.
TEST(CardMemory, WhatTheDriverRoundsUpIsNotPyTorchs) {
  allocator::AllocatorSettings settings;
  settings.large_segment_size = kMiB * 11;
  CardMemory card(kMiB * 64, 0, settings);
  const auto made = card.allocate(Leaf::kRuntimeLogits, kMiB * 4);
  ASSERT_TRUE(made);
  EXPECT_EQ(card.ledger().views().torch_reserved, kMiB * 11);
  EXPECT_EQ(card.ledger().views().device_used, kMiB * 12);
  card.free(*made);
  card.empty_cache();
  EXPECT_EQ(card.ledger().views().device_used, Bytes{0});
}

}  // namespace
}  // namespace oomcast
