#include "sim/ledger/ledger.hpp"

#include <gtest/gtest.h>

#include <array>

#include "sim/core/random.hpp"

namespace oomcast {
namespace {

Account driver_free() { return Account::free_of(Backing::kDriver); }

TEST(Ledger, BooksBalanceOnPaper) {
  Ledger ledger(kGiB * 80);
  ledger.transfer(driver_free(), Account::cell(Leaf::kSystemContext, Backing::kContext),
                  kMiB * 520);
  ledger.transfer(Account::free_of(Backing::kSegment),
                  Account::cell(Leaf::kSystemCached, Backing::kSegment), kGiB * 16);
  ledger.transfer(Account::cell(Leaf::kSystemCached, Backing::kSegment),
                  Account::cell(Leaf::kModelWeights, Backing::kSegment), kGiB * 15);
  ledger.transfer(Account::free_of(Backing::kPinnedHost),
                  Account::cell(Leaf::kKvTransfer, Backing::kPinnedHost), kGiB * 4);
  const MemoryViews views = ledger.views();
  EXPECT_EQ(views.torch_reserved, kGiB * 16);   // the segments
  EXPECT_EQ(views.torch_allocated, kGiB * 15);  // without the GiB that is cached
  EXPECT_EQ(views.device_used, kGiB * 16 + kMiB * 520);
  EXPECT_EQ(views.pinned_host, kGiB * 4);  // not HBM
  EXPECT_EQ(ledger.device_free(), kGiB * 64 - kMiB * 520);
  ledger.audit();
}

TEST(Ledger, ManyLegsAreTheSumOfTheirTransfers) {
  const std::array<Leaf, 2> leaves = {Leaf::kRuntimeLogits, Leaf::kRuntimeActivations};
  const Account cached = Account::cell(Leaf::kSystemCached, Backing::kSegment);
  Ledger legs(kGiB);
  legs.transfer(Account::free_of(Backing::kSegment), cached, kMiB * 100);
  Ledger transfers = legs;
  legs.settle(leaves, std::array{kMiB * 30, kMiB * 50}, Leaf::kSystemCached, Backing::kSegment);
  legs.settle(leaves, std::array{kMiB * 45, Bytes{}}, Leaf::kSystemCached, Backing::kSegment);
  transfers.transfer(cached, Account::cell(Leaf::kRuntimeLogits, Backing::kSegment), kMiB * 45);
  EXPECT_EQ(legs.device_by_leaf(), transfers.device_by_leaf());
  EXPECT_EQ(legs.views().torch_allocated, transfers.views().torch_allocated);
  EXPECT_EQ(legs.views().torch_reserved, kMiB * 100);
  legs.audit();
}

TEST(LedgerDeathTest, WrongPostingsAbort) {
  Ledger ledger(kGiB);
  const Account weights = Account::cell(Leaf::kModelWeights, Backing::kSegment);
  EXPECT_EXIT(ledger.transfer(weights, driver_free(), Bytes{1}), ::testing::ExitedWithCode(1),
              "model.weights x segment would hold -1 bytes");
  EXPECT_EXIT(ledger.transfer(driver_free(), weights, Bytes{-1}), ::testing::ExitedWithCode(1),
              "a transfer of -1 bytes");
  EXPECT_EXIT(ledger.transfer(Account::free_of(Backing::kPinnedHost), weights, Bytes{1}),
              ::testing::ExitedWithCode(1), "bytes cannot move between pinned_host and segment");
  EXPECT_EXIT(ledger.settle(std::array{Leaf::kRuntimeLogits}, std::array{Bytes{1}},
                            Leaf::kSystemCached, Backing::kSegment),
              ::testing::ExitedWithCode(1), "system.cached x segment would hold -1 bytes");
}

TEST(Ledger, RandomPostingsConserveEveryByte) {
  Ledger ledger(kGiB * 80);
  RandomStream stream = random_stream(11, "ledger");
  for (int i = 0; i < 200'000; ++i) {
    const auto leaf = static_cast<Leaf>(uniform_int(stream, 0, kLeafCount - 1));
    const auto backing = static_cast<Backing>(uniform_int(stream, 0, kBackingCount - 1));
    const Account cell = Account::cell(leaf, backing);
    const Account outside = Account::free_of(backing);
    const Bytes held = ledger.at(leaf, backing);
    if (uniform_int(stream, 0, 1) == 0) {
      ledger.transfer(outside, cell, Bytes{uniform_int(stream, 0, 1 << 20)});
    } else {
      ledger.transfer(cell, outside, Bytes{uniform_int(stream, 0, held.count())});
    }
    if (i % 1000 == 0) {
      ledger.audit();
    }
  }
  Bytes by_leaf;
  for (const Bytes bytes : ledger.device_by_leaf()) {
    by_leaf += bytes;
  }
  EXPECT_EQ(by_leaf, ledger.views().device_used);
  EXPECT_EQ(by_leaf + ledger.device_free(), ledger.device_total());
}

TEST(PeakTracker, KeepsTheEarliestWitness) {
  Ledger ledger(kGiB);
  PeakTracker peaks;
  const Account logits = Account::cell(Leaf::kRuntimeLogits, Backing::kSegment);
  const Account outside = Account::free_of(Backing::kSegment);
  ledger.transfer(outside, logits, kMiB * 100);
  peaks.observe(ledger, SimTime{Nanos{1}}, "first");
  ledger.transfer(logits, outside, kMiB * 50);
  peaks.observe(ledger, SimTime{Nanos{2}}, "lower");
  ledger.transfer(outside, logits, kMiB * 50);
  peaks.observe(ledger, SimTime{Nanos{3}}, "equal");
  EXPECT_EQ(peaks.device().bytes, kMiB * 100);
  EXPECT_EQ(peaks.device().during, "first");
  EXPECT_EQ(peaks.of(Leaf::kRuntimeLogits).at, SimTime{Nanos{1}});
  EXPECT_EQ(peaks.device().live[index_of(Leaf::kRuntimeLogits)], kMiB * 100);
}

}  // namespace
}  // namespace oomcast
