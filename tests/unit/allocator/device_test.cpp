#include "sim/allocator/device.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"

namespace oomcast::allocator {
namespace {

constexpr std::int64_t kFirst = std::int64_t{1} << 40;

Device device(AddressPolicy policy) { return Device({.total = 64 * kMiB, .addresses = policy}); }

TEST(Device, HandsOutWholeUnitsUpToItsTotal) {
  Device gpu({.total = 16 * kMiB, .base_used = 4 * kMiB, .other_processes = 2 * kMiB});
  EXPECT_EQ(gpu.free(), 10 * kMiB);
  EXPECT_EQ(gpu.used_by_process(), 4 * kMiB);
  EXPECT_TRUE(gpu.allocate(Bytes{1}));  // one unit of 2 MiB
  EXPECT_EQ(gpu.free(), 8 * kMiB);
  EXPECT_FALSE(gpu.allocate(8 * kMiB + Bytes{1}));
  EXPECT_TRUE(gpu.allocate(8 * kMiB));
  EXPECT_EQ(gpu.free(), Bytes{});
}

TEST(Device, MemoryTakenOutsideCountsUntilReturned) {
  Device gpu(device(AddressPolicy::kFirstFit));
  EXPECT_TRUE(gpu.take_outside(60 * kMiB));
  EXPECT_FALSE(gpu.take_outside(6 * kMiB));
  EXPECT_FALSE(gpu.create_pages(2 * kMiB, 3));
  EXPECT_TRUE(gpu.create_pages(2 * kMiB, 2));
  gpu.destroy_pages(2 * kMiB, 2);
  gpu.return_outside(60 * kMiB);
  EXPECT_EQ(gpu.used(), Bytes{});
}

TEST(Device, AscendingAddressesAreNeverReused) {
  Device gpu = device(AddressPolicy::kAscending);
  EXPECT_EQ(gpu.allocate(3 * kMiB), kFirst);
  const auto second = gpu.allocate(2 * kMiB);
  EXPECT_EQ(second, kFirst + (4 * kMiB).count());  // on the next boundary of 2 MiB
  gpu.release(*second, 2 * kMiB);
  EXPECT_EQ(gpu.allocate(2 * kMiB), kFirst + (6 * kMiB).count());
}

TEST(Device, DescendingAddressesEndWhereTheLastBegan) {
  Device gpu = device(AddressPolicy::kDescending);
  constexpr std::int64_t kTop = std::int64_t{1} << 46;
  EXPECT_EQ(gpu.allocate(4 * kMiB), kTop - (4 * kMiB).count());
  EXPECT_EQ(gpu.reserve_addresses(72 * kMiB), kTop - (76 * kMiB).count());
}

TEST(Device, FirstFitTakesTheLowestGapThatSuffices) {
  Device gpu = device(AddressPolicy::kFirstFit);
  const auto at = [](int mib) { return kFirst + (kMiB * mib).count(); };
  for (const int size : {4, 8, 4, 8}) {
    gpu.allocate(kMiB * size);  // [0,4) [4,12) [12,16) [16,24)
  }
  gpu.release(at(4), 8 * kMiB);
  gpu.release(at(0), 4 * kMiB);               // joins what follows
  EXPECT_EQ(gpu.allocate(10 * kMiB), at(0));  // 2 of 12 MiB are left
  EXPECT_EQ(gpu.allocate(4 * kMiB), at(24));  // do not suffice
  EXPECT_EQ(gpu.allocate(2 * kMiB), at(10));
  gpu.release(at(12), 4 * kMiB);
  EXPECT_EQ(gpu.reserve_addresses(6 * kMiB), at(28));
}

TEST(Device, RefusesImpossibleSizes) {
  EXPECT_THROW(Device({.total = Bytes{}}), ConfigError);
  EXPECT_THROW(Device({.total = 1024 * kGiB}), ConfigError);
  EXPECT_THROW(Device({.total = kMiB, .base_used = 2 * kMiB}), ConfigError);
  EXPECT_THROW(Device({.total = kMiB, .base_used = kMiB, .other_processes = kMiB}), ConfigError);
  EXPECT_THROW(Device({.total = kMiB, .base_used = Bytes{-1}}), ConfigError);
}

TEST(Device, AddressesCanRunOut) {
  Device gpu = device(AddressPolicy::kDescending);
  EXPECT_NO_THROW(gpu.reserve_addresses(Bytes{std::int64_t{1} << 45}));
  EXPECT_THROW(gpu.reserve_addresses(Bytes{std::int64_t{1} << 45}), ArithmeticOverflow);
}

}  // namespace
}  // namespace oomcast::allocator
