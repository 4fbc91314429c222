#include "sim/kv/span_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "sim/core/random.hpp"

namespace oomcast::kv {
namespace {

using Ids = std::vector<BlockId>;
using Keys = std::vector<BlockKey>;

Ids ids_of(const SpanPool& pool, const SpanPool::Table& table) {
  Ids ids;
  pool.list(table, ids);
  return ids;
}

TEST(SpanPool, StartsInOrderAndGivesBackTheTailFirst) {
  SpanPool pool(8, true);
  SpanPool::Table table;
  pool.take(3, 0, table);
  pool.take(1, 0, table);
  EXPECT_EQ(ids_of(pool, table), (Ids{1, 2, 3, 4}));
  pool.insert(Keys{10, 11}, 0, table);
  pool.release(table, 3);  // one with a hash of its own, one without any
  EXPECT_EQ(pool.listing().free_list, (Ids{4, 5, 6, 7, 3, 2, 1}));
  EXPECT_EQ(pool.cached_free(), 3);
  pool.check();
}

TEST(SpanPool, APartOfASpanIsHitAndItsEndIsEvictedFirst) {
  SpanPool pool(6, true);
  SpanPool::Table first;
  pool.take(5, 0, first);
  pool.insert(Keys{10, 11, 12, 13, 14}, 0, first);
  pool.release(first, 5);
  SpanPool::Hit hit;
  pool.find(Keys{10, 11, 12, 99}, hit);
  EXPECT_EQ(hit.blocks, 3);
  EXPECT_EQ(pool.free_of(hit), 3);
  hit.keep(2);
  SpanPool::Table second;
  pool.touch(hit, second);
  EXPECT_EQ(pool.listing().free_list, (Ids{5, 4, 3}));
  pool.take(2, 0, second);
  EXPECT_EQ(ids_of(pool, second), (Ids{1, 2, 5, 4}));
  EXPECT_EQ(pool.evictions(), 2U);
  pool.check();
}

TEST(SpanPool, OfEqualKeysTheFirstBlockThatIsLeftIsFound) {
  SpanPool pool(8, false);
  SpanPool::Table one;
  SpanPool::Table two;
  pool.take(2, 0, one);
  pool.take(2, 0, two);
  pool.insert(Keys{10, 11}, 0, one);
  pool.insert(Keys{10, 11}, 0, two);
  SpanPool::Hit hit;
  pool.find(Keys{10, 11}, hit);
  SpanPool::Table reader;
  pool.touch(hit, reader);
  EXPECT_EQ(ids_of(pool, reader), (Ids{1, 2}));
  pool.release(reader, 2);
  pool.release(one, 2);
  SpanPool::Table rest;
  pool.take(5, 0, rest);  // 5, 6, 7, and then those of the first, the last one first
  EXPECT_EQ(ids_of(pool, rest), (Ids{5, 6, 7, 2, 1}));
  pool.find(Keys{10, 11}, hit);
  pool.touch(hit, reader);
  EXPECT_EQ(ids_of(pool, reader), (Ids{3, 4}));
  pool.check();
}

// A request as both pools see it.
struct Holder {
  Keys path;
  std::int64_t keyed = 0;
  Ids blocks;
  SpanPool::Table spans;
};

class Twins {
 public:
  Twins(std::int64_t blocks, bool unhashed_first)
      : single_(blocks, unhashed_first), spans_(blocks, unhashed_first) {}

  [[nodiscard]] std::int64_t free() const { return single_.free(); }

  void open(Holder& holder, std::int64_t longest) {
    PrefixIndex::Cursor cursor;
    std::int64_t needed = 0;
    for (std::int64_t i = 0; i < longest; ++i) {
      const BlockId block = single_.next(cursor, holder.path[static_cast<std::size_t>(i)]);
      if (block == kNullBlock) {
        break;
      }
      holder.blocks.push_back(block);
      needed += single_.references(block) == 0 ? 1 : 0;
    }
    SpanPool::Hit hit;
    spans_.find(std::span(holder.path).first(static_cast<std::size_t>(longest)), hit);
    EXPECT_EQ(spans_.free_of(hit), needed);
    for (const BlockId block : holder.blocks) {
      single_.touch(block);
    }
    spans_.touch(hit, holder.spans);
    holder.keyed = std::ssize(holder.blocks);
  }
  void take(Holder& holder, std::int64_t count) {
    single_.take(count, holder.blocks);
    spans_.take(count, std::ssize(holder.path), holder.spans);
  }
  void insert(Holder& holder, std::int64_t upto) {
    const auto from = static_cast<std::size_t>(holder.keyed);
    const auto count = static_cast<std::size_t>(upto - holder.keyed);
    const std::span<const BlockKey> keys = std::span(holder.path).subspan(from, count);
    PrefixIndex::Before before;
    if (from > 0) {
      before = {holder.blocks[from - 1], holder.path[from - 1]};
    }
    single_.insert(keys, std::span(holder.blocks).subspan(from, count), 0, 1, before);
    spans_.insert(keys, holder.keyed, holder.spans);
    holder.keyed = upto;
  }
  void close(Holder& holder, std::int64_t hashed) {
    {
      BlockPool::Release release(single_);
      release.owned(holder.blocks, holder.keyed, hashed);
      release.front(holder.blocks, holder.keyed);
    }
    spans_.release(holder.spans, hashed);
    holder.blocks.clear();
  }

  void compare(const std::deque<Holder>& holders) const {
    spans_.check();
    const PoolListing one = single_.listing();
    const PoolListing other = spans_.listing();
    ASSERT_EQ(one.free_list, other.free_list);
    ASSERT_EQ(one.references, other.references);
    ASSERT_EQ(one.hashed, other.hashed);
    ASSERT_EQ(one.keys, other.keys);
    ASSERT_EQ(single_.free(), spans_.free());
    ASSERT_EQ(single_.cached_free(), spans_.cached_free());
    ASSERT_EQ(single_.insertions(), spans_.insertions());
    ASSERT_EQ(single_.evictions(), spans_.evictions());
    for (const Holder& holder : holders) {
      ASSERT_EQ(ids_of(spans_, holder.spans), holder.blocks);
    }
  }

 private:
  BlockPool single_;
  SpanPool spans_;
};

// Few different prompts over few letters, so that prefixes are shared, met twice and cut anywhere.
Keys random_path(RandomStream& random) {
  Keys path;
  BlockKey key = 1;
  const std::int64_t length = uniform_int(random, 1, 12);
  for (std::int64_t i = 0; i < length; ++i) {
    key = key * 8 + static_cast<BlockKey>(uniform_int(random, 0, 9) == 0 ? 2 : 1);
    path.push_back(key);
  }
  return path;
}

TEST(SpanPool, IsThePoolOfSingleBlocksBlockForBlock) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RandomStream random = random_stream(seed, "unit.span_pool");
    const std::int64_t blocks = uniform_int(random, 8, 60);
    Twins twins(blocks, seed % 2 == 0);
    std::deque<Holder> holders;
    for (int i = 0; i < 150; ++i) {
      const std::int64_t choice = uniform_int(random, 0, 9);
      if (choice < 4 || holders.empty()) {
        Holder& holder = holders.emplace_back();
        holder.path = random_path(random);
        const std::int64_t length = std::ssize(holder.path);
        twins.open(holder, uniform_int(random, 0, length));
        const std::int64_t rest = length - std::ssize(holder.blocks) + uniform_int(random, 0, 2);
        twins.take(holder, std::min(twins.free(), rest));
      }
      const auto one = static_cast<std::size_t>(uniform_int(random, 0, std::ssize(holders) - 1));
      Holder& holder = holders[one];
      const std::int64_t fillable = std::min(std::ssize(holder.path), std::ssize(holder.blocks));
      if (choice < 6) {
        twins.insert(holder, uniform_int(random, holder.keyed, fillable));
      } else if (choice == 6) {
        twins.take(holder, std::min(twins.free(), uniform_int(random, 0, 3)));
      } else if (choice > 6) {
        twins.close(holder, uniform_int(random, holder.keyed, std::ssize(holder.blocks)));
        holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(one));
      }
      twins.compare(holders);
      if (HasFatalFailure()) {
        FAIL() << "seed " << seed << " after " << i;
      }
    }
  }
}

}  // namespace
}  // namespace oomcast::kv
