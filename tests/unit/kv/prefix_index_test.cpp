#include "sim/kv/prefix_index.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "sim/core/random.hpp"

namespace oomcast::kv {
namespace {

// Keys of the prefixes of a path of letters: 1, 1x, 1xy, ..
std::vector<BlockKey> keys_of(const std::vector<int>& path) {
  std::vector<BlockKey> keys;
  BlockKey key = 1;
  for (const int letter : path) {
    key = key * 10 + static_cast<BlockKey>(letter);
    keys.push_back(key);
  }
  return keys;
}

// Blocks that a walk along the keys finds.
std::vector<BlockId> walk(const PrefixIndex& index, const std::vector<BlockKey>& keys) {
  std::vector<BlockId> found;
  PrefixIndex::Cursor cursor;
  for (const BlockKey key : keys) {
    const BlockId block = index.next(cursor, key);
    if (block == kNullBlock) {
      break;
    }
    found.push_back(block);
  }
  return found;
}

// A prompt of three blocks.
void insert_first(PrefixIndex& index) {
  index.insert(11, 1, 16, {});
  index.insert(112, 2, 32, {1, 11});
  index.insert(1123, 3, 48, {2, 112});
}

TEST(PrefixIndex, AWalkGoesOnWherePrefixesPart) {
  PrefixIndex index(10);
  insert_first(index);
  index.insert(1124, 4, 48, {2, 112});
  EXPECT_EQ(walk(index, {11, 112, 1123}), (std::vector<BlockId>{1, 2, 3}));
  EXPECT_EQ(walk(index, {11, 112, 1124}), (std::vector<BlockId>{1, 2, 4}));
  EXPECT_EQ(walk(index, {11, 113}), (std::vector<BlockId>{1}));
  EXPECT_EQ(index.first_key_tokens(3), 48);
  index.check();
}

TEST(PrefixIndex, ASecondBlockOfAPrefixWaitsForTheFirstToGo) {
  PrefixIndex index(10);
  insert_first(index);
  index.insert(112, 4, 32, {1, 11});
  index.insert(1123, 5, 48, {4, 112});
  index.check();
  EXPECT_EQ(walk(index, {11, 112, 1123}), (std::vector<BlockId>{1, 2, 3}));
  index.forget(2);
  EXPECT_EQ(walk(index, {11, 112, 1123}), (std::vector<BlockId>{1, 4, 3}));
  index.forget(3);
  EXPECT_EQ(walk(index, {11, 112, 1123}), (std::vector<BlockId>{1, 4, 5}));
  index.check();
}

TEST(PrefixIndex, WhatABlockLostFromTheMiddleLeavesIsFoundWhenThePrefixIsBack) {
  PrefixIndex index(10);
  insert_first(index);
  index.forget(2);
  EXPECT_EQ(walk(index, {11, 112, 1123}), (std::vector<BlockId>{1}));
  index.insert(112, 4, 32, {1, 11});
  EXPECT_EQ(walk(index, {11, 112, 1123}), (std::vector<BlockId>{1, 4, 3}));
  index.check();
}

// Random prefixes over few letters against a list of blocks for each key.
TEST(PrefixIndex, AgreesWithAListOfBlocksForEachKey) {
  constexpr BlockId kBlocks = 60;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RandomStream random = random_stream(seed, "prefix index");
    const auto below = [&](std::uint64_t n) { return random() % n; };
    PrefixIndex index(kBlocks + 1);
    std::map<BlockKey, std::vector<BlockId>> model;
    std::vector<BlockKey> key_of(kBlocks + 1, 0);
    const auto forget = [&](BlockId block) {
      index.forget(block);
      if (key_of[static_cast<std::size_t>(block)] != 0) {
        std::erase(model[std::exchange(key_of[static_cast<std::size_t>(block)], 0)], block);
      }
    };
    for (int step = 0; step < 200; ++step) {
      std::vector<int> path(1 + below(8));
      std::generate(path.begin(), path.end(), [&] { return static_cast<int>(below(2)); });
      const std::vector<BlockKey> keys = keys_of(path);
      std::vector<BlockId> expected;
      for (const BlockKey key : keys) {
        if (model[key].empty()) {
          break;
        }
        expected.push_back(model[key].front());
      }
      std::vector<BlockId> table = walk(index, keys);
      ASSERT_EQ(table, expected) << "seed " << seed << " step " << step;
      // Some of what was found is computed again.
      table.resize(below(table.size() + 1));
      while (table.size() < keys.size()) {
        const auto block = static_cast<BlockId>(1 + below(kBlocks));
        if (std::find(table.begin(), table.end(), block) != table.end()) {
          continue;
        }
        forget(block);
        const std::size_t at = table.size();
        index.insert(
            keys[at], block, 1,
            at == 0 ? PrefixIndex::Before{} : PrefixIndex::Before{table.back(), keys[at - 1]});
        model[keys[at]].push_back(block);
        key_of[static_cast<std::size_t>(block)] = keys[at];
        table.push_back(block);
      }
      for (std::uint64_t gone = below(6); gone > 0; --gone) {
        forget(static_cast<BlockId>(1 + below(kBlocks)));
      }
      index.check();
    }
  }
}

}  // namespace
}  // namespace oomcast::kv
