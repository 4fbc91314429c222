// Copies between cards and host on paper: one byte a nanosecond.
#include "sim/run/host_copies.hpp"

#include <gtest/gtest.h>

namespace oomcast {
namespace {

constexpr double kBytePerNano = 1e9;

FineSpan at(std::int64_t nanos) { return FineSpan{Nanos{nanos}}; }

HostCopies::Copy copy(HostCopies::Job job, std::int64_t bytes) {
  return {job, Bytes{bytes}, Bytes{bytes * 2}};  // two cards
}

TEST(HostCopies, LoadsQueueBehindEachOtherAndNoStepWaits) {
  HostCopies copies(kGiB, kBytePerNano);
  copies.load(copy(0, 1000), Tokens{16}, false);
  copies.load(copy(1, 500), Tokens{8}, false);
  EXPECT_EQ(copies.begin(at(100)), at(100));
  EXPECT_EQ(copies.next_end(), at(1100));
  copies.advance(at(1099));
  EXPECT_TRUE(copies.over().empty());
  copies.advance(at(1100));
  EXPECT_EQ(copies.over(), std::vector<HostCopies::Job>{0});
  EXPECT_EQ(copies.next_end(), at(1600));
  copies.clear_over();
  copies.advance(at(5000));
  EXPECT_EQ(copies.over(), std::vector<HostCopies::Job>{1});
  EXPECT_EQ(copies.next_end(), std::nullopt);
  EXPECT_EQ(copies.totals().loaded, Bytes{3000});
  EXPECT_EQ(copies.totals().hit_tokens, Tokens{24});
  EXPECT_EQ(copies.totals().loads_took, Nanos{1000 + 1500});
  EXPECT_EQ(copies.totals().steps_waited, Nanos{0});
}

TEST(HostCopies, StoresBeginWhenTheirStepIsOverBesideLoads) {
  HostCopies copies(kGiB, kBytePerNano);
  copies.store(copy(0, 2000));
  copies.load(copy(1, 300), Tokens{16}, false);
  EXPECT_EQ(copies.begin(at(0)), at(0));
  copies.launched(at(200));
  EXPECT_EQ(copies.next_end(), at(300));  // the other direction is free
  copies.advance(at(2200));
  EXPECT_EQ(copies.over(), (std::vector<HostCopies::Job>{0, 1}));
  EXPECT_EQ(copies.totals().stored, Bytes{4000});
}

TEST(HostCopies, AStepWaitsForWhatIsFlushedAndForLoadsBeforeIt) {
  HostCopies copies(kGiB, kBytePerNano);
  copies.store(copy(0, 2000));
  EXPECT_EQ(copies.begin(at(0)), at(0));
  copies.launched(at(200));
  copies.flush(0);
  EXPECT_EQ(copies.begin(at(300)), at(2200));
  copies.launched(at(2500));
  copies.flush(0);  // over by now
  copies.load(copy(1, 100), Tokens{16}, true);
  EXPECT_EQ(copies.begin(at(2500)), at(2600));
  EXPECT_EQ(copies.totals().steps_waited, Nanos{1900 + 100});
}

TEST(HostCopies, AStoreFlushedByItsOwnStepBeginsBeforeIt) {
  HostCopies copies(kGiB, kBytePerNano);
  copies.store(copy(0, 700));
  copies.store(copy(1, 50));
  copies.flush(0);
  EXPECT_EQ(copies.begin(at(1000)), at(1700));
  copies.launched(at(3000));
  copies.advance(at(3050));
  EXPECT_EQ(copies.over(), (std::vector<HostCopies::Job>{0, 1}));
}

// Four layers. The first comes after a quarter of the load; what is slower then sets the pace.
TEST(HostCopies, AStepReadsLayersAsTheyCome) {
  for (const auto& [took, late] : {std::pair{100, 10}, {40, 10}, {8, 34}}) {
    HostCopies copies(kGiB, kBytePerNano);
    copies.load_by_layer(copy(0, 40), Tokens{16}, 4);
    EXPECT_EQ(copies.begin(at(500)), at(500));
    EXPECT_EQ(copies.stalls(at(500), at(took)), at(late)) << took;
    EXPECT_EQ(copies.stalls(at(1000), at(took)), at(0)) << "the next step reads nothing";
    EXPECT_EQ(copies.totals().steps_waited, Nanos{late});
    EXPECT_EQ(copies.totals().loads_took, Nanos{40});
  }
}

// Written back first, then the layers come.
TEST(HostCopies, AnEarlyStoreDelaysTheStepAndItsLoad) {
  HostCopies copies(kGiB, kBytePerNano);
  copies.store_at_start(copy(0, 300));
  copies.store_at_start(copy(1, 200));
  copies.flush(0);
  copies.load_by_layer(copy(2, 40), Tokens{16}, 4);
  EXPECT_EQ(copies.begin(at(100)), at(400));
  EXPECT_EQ(copies.stalls(at(400), at(100)), at(10));
  copies.advance(at(440));
  EXPECT_EQ(copies.over(), (std::vector<HostCopies::Job>{0, 2}));
  EXPECT_EQ(copies.next_end(), at(600));
  EXPECT_EQ(copies.totals().steps_waited, Nanos{300 + 10});
}

}  // namespace
}  // namespace oomcast
