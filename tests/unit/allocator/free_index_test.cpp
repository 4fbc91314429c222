#include "sim/allocator/free_index.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "sim/core/random.hpp"

namespace oomcast::allocator {
namespace {

using Entry = std::pair<FreeIndex::Key, FreeIndex::Id>;

// Equal keys go by id here.
constexpr auto kById = [](FreeIndex::Id left, FreeIndex::Id right) { return left < right; };

std::vector<FreeIndex::Id> ids(const FreeIndex& index) {
  std::vector<FreeIndex::Id> found;
  for (auto at = index.begin(); !index.at_end(at); at = index.next(at)) {
    found.push_back(index.id(at));
  }
  return found;
}

TEST(FreeIndex, FindsTheFirstAtOrAboveAKey) {
  FreeIndex index;
  EXPECT_TRUE(index.at_end(index.lower_bound(0)));
  for (const auto& [key, id] : std::vector<Entry>{{8, 1}, {4, 2}, {8, 0}, {2, 3}}) {
    index.insert(key, id, kById);
  }
  EXPECT_EQ(ids(index), (std::vector<FreeIndex::Id>{3, 2, 0, 1}));
  EXPECT_EQ(index.id(index.lower_bound(3)), 2U);
  EXPECT_EQ(index.id(index.lower_bound(5)), 0U);
  EXPECT_TRUE(index.at_end(index.lower_bound(9)));
  index.replace(index.locate(2, 3, kById), 8, 7, kById);
  EXPECT_EQ(ids(index), (std::vector<FreeIndex::Id>{2, 0, 1, 7}));
  index.replace(index.locate(8, 0, kById), 5, 4, kById);
  EXPECT_EQ(ids(index), (std::vector<FreeIndex::Id>{2, 4, 1, 7}));
}

// Against std::set, over sizes that split and join chunks, with long runs of equal keys.
TEST(FreeIndex, StaysInOrderOverRandomChanges) {
  RandomStream random = random_stream(1, "free_index");
  for (const std::int64_t keys : {3, 40, 100'000}) {
    FreeIndex index;
    std::set<Entry> expected;
    for (int round = 0; round < 6; ++round) {
      const std::int64_t wanted = round % 2 == 0 ? 1500 : 20;
      for (int i = 0; i < 4000; ++i) {
        const Entry entry{static_cast<FreeIndex::Key>(uniform_int(random, 0, keys)),
                          static_cast<FreeIndex::Id>(uniform_int(random, 0, 3000))};
        const bool grows = static_cast<std::int64_t>(expected.size()) < wanted;
        if (grows && expected.insert(entry).second) {
          index.insert(entry.first, entry.second, kById);
        } else if (!grows) {
          const auto victim = expected.lower_bound(entry);
          if (victim != expected.end()) {
            index.erase(index.locate(victim->first, victim->second, kById));
            expected.erase(victim);
          }
        }
        const auto found = index.lower_bound(entry.first);
        const auto first = expected.lower_bound({entry.first, 0});
        ASSERT_EQ(index.at_end(found), first == expected.end());
        if (first != expected.end()) {
          ASSERT_EQ(index.id(found), first->second);
        }
      }
      std::vector<FreeIndex::Id> in_order;
      for (const Entry& entry : expected) {
        in_order.push_back(entry.second);
      }
      ASSERT_EQ(ids(index), in_order);
      auto at = index.end();
      for (auto id = in_order.rbegin(); id != in_order.rend(); ++id) {
        at = index.previous(at);
        ASSERT_EQ(index.id(at), *id);
      }
      ASSERT_EQ(at, index.begin());
    }
  }
}

}  // namespace
}  // namespace oomcast::allocator
