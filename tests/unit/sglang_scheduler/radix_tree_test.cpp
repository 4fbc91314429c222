// The prefix tree on paper: sizes after each operation, and who is evicted first.
#include "sim/engines/sglang/radix_tree.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"

namespace oomcast::sglang {
namespace {

kv::TokenRuns content(std::initializer_list<std::pair<std::uint64_t, std::int64_t>> segments) {
  kv::TokenRuns made;
  for (const auto& [segment, length] : segments) {
    made.append({segment, 0, length});
  }
  return made;
}

class Tree {
 public:
  explicit Tree(TreeSettings settings = {}, std::int64_t page = 1)
      : pools_{SlotPool{1000}, SlotPool{settings.window > 0 ? 500 : 0}, page, settings.window > 0},
        tree_(settings, pools_) {}

  RadixTree* operator->() { return &tree_; }
  SlotPools& pools() { return pools_; }

  // As a request that computed all of it would.
  RadixTree::Inserted insert(const kv::TokenRuns& what, std::int64_t priority = 0,
                             std::int64_t gone = 0) {
    pools_.full.take(what.length());
    if (pools_.windowed) {
      pools_.window.take(what.length() - gone);
    }
    return tree_.insert(what, {.length = what.length(), .gone = gone, .priority = priority});
  }
  // Whether it is still there, without a lookup's effects on what is not.
  std::int64_t known(const kv::TokenRuns& what) { return tree_.match(what, what.length()).length; }

 private:
  SlotPools pools_;
  RadixTree tree_;
};

const kv::TokenRuns ten = content({{1, 10}});
const kv::TokenRuns twenty = content({{2, 20}});
const kv::TokenRuns thirty = content({{3, 30}});

TEST(RadixTree, ALookupThatEndsInsideAnEdgeSplitsIt) {
  Tree tree;
  tree.insert(content({{1, 10}, {2, 10}}));
  EXPECT_EQ(tree->nodes(), 1);
  const RadixTree::Match found = tree->match(content({{1, 10}, {2, 3}, {9, 5}}), 18);
  EXPECT_EQ(found.length, 13);
  EXPECT_EQ(tree->nodes(), 2);
  EXPECT_EQ(tree->evictable(), 20);
  tree->check(0);
}

TEST(RadixTree, OnlyWholePagesMatch) {
  Tree tree({}, 4);
  tree.insert(content({{1, 12}}));
  EXPECT_EQ(tree->match(content({{1, 12}}), 11).length, 8);
  EXPECT_EQ(tree->match(content({{1, 7}, {5, 5}}), 12).length, 4);
  EXPECT_EQ(tree->match(content({{1, 3}, {5, 9}}), 12).length, 0);
  tree->check(0);
}

TEST(RadixTree, SlotsOfWhatWasThereAlreadyGoBack) {
  Tree tree;
  tree.insert(content({{1, 10}, {2, 10}}));
  EXPECT_EQ(tree.pools().full.free(), 980);
  // 10 of 15 were there: the second copy of those is free again.
  const RadixTree::Inserted again = tree.insert(content({{1, 10}, {3, 5}}));
  EXPECT_EQ(again.existing, 10);
  EXPECT_EQ(tree.pools().full.free(), 975);
  EXPECT_EQ(tree->evictable(), 25);
}

TEST(RadixTree, LocksCountOnAllAncestors) {
  Tree tree;
  tree.insert(content({{1, 10}, {2, 10}}));
  const RadixTree::Inserted branch = tree.insert(content({{1, 10}, {3, 5}}));
  const WindowMark mark = tree->lock(branch.node);
  EXPECT_EQ(tree->locked(), 15);
  EXPECT_EQ(tree->evictable(), 10);
  tree->evict(1000, 0);
  EXPECT_EQ(tree.pools().full.free(), 985);  // all but what is locked
  tree->check(1);
  tree->unlock(branch.node, mark);
  EXPECT_EQ(tree->evictable(), 15);
  tree->evict(1, 0);  // leaves are evicted whole: the 5 go
  EXPECT_EQ(tree.pools().full.free(), 990);
  tree->evict(1, 0);  // and their parent has become a leaf
  EXPECT_EQ(tree.pools().full.free(), 1000);
  tree->check(0);
}

TEST(RadixTree, UnlockingTwiceIsCaught) {
  Tree tree;
  const RadixTree::Inserted leaf = tree.insert(ten);
  EXPECT_DEATH(tree->unlock(leaf.node, 0), "unlocked once too often");
}

TEST(RadixTree, TheLeastRecentlyUsedLeafGoesFirst) {
  Tree tree;
  tree.insert(ten);
  tree.insert(twenty);
  tree.insert(thirty);
  EXPECT_EQ(tree.known(ten), 10);  // now B is the oldest
  tree->evict(1, 0);
  EXPECT_EQ(tree.pools().full.free(), 1000 - 10 - 30);
  EXPECT_EQ(tree.known(twenty), 0);
}

TEST(RadixTree, EvictionStopsOnceThePoolHasEnough) {
  Tree tree;
  tree.insert(ten);
  tree.insert(twenty);
  tree.insert(thirty);
  tree->evict(11, 0);  // A's 10 do not do, with B's it is 30
  EXPECT_EQ(tree.pools().full.free(), 1000 - 30);
}

// 0.5.23: the lower half of a split is the newest. Up to 0.5.8 it has the time of the walk, its
// upper half that of its creation.
TEST(RadixTree, ASplitMakesTheLowerHalfNewer) {
  for (const bool old : {false, true}) {
    Tree tree({.unified = !old});
    tree.insert(content({{1, 10}, {2, 10}}));
    tree.insert(twenty);
    tree->match(content({{1, 10}, {2, 4}, {7, 1}}), 15);
    tree->match(twenty, 20);
    tree->evict(1, 0);
    // Both were walked before B was looked up again, so the lower half goes: 6 tokens.
    EXPECT_EQ(tree.pools().full.free(), 1000 - 40 + 6) << old;
  }
  // What the split itself touches counts: insert walks the edge, then the split stamps it again.
  Tree tree;
  tree.insert(content({{1, 10}, {2, 10}}));
  tree.insert(content({{1, 10}, {2, 4}, {7, 3}}));  // lower half: newest but for the new leaf
  tree->evict(1, 0);
  EXPECT_EQ(tree.pools().full.free(), 1000 - 23 + 6);
}

TEST(RadixTree, LfuCountsInsertionsPerRequest) {
  Tree tree({.policy = EvictionPolicy::kLfu});
  tree.insert(ten);
  tree.insert(ten);  // 2 hits
  tree.insert(twenty);
  tree.insert(thirty);
  tree.insert(thirty);
  tree->match(twenty, 20);  // lookups do not count
  tree->evict(1, 0);
  EXPECT_EQ(tree.known(twenty), 0);
  // What a request inserted before does not count again.
  tree.pools().full.take(10);
  tree->insert(ten, {.length = 10, .published = 10});
  tree->insert(thirty, {.length = 30, .shared = 30});  // 3 hits
  tree->evict(1, 0);
  EXPECT_EQ(tree.known(ten), 0);
  EXPECT_EQ(tree.known(thirty), 30);
}

TEST(RadixTree, OtherPolicies) {
  const auto survivors = [](EvictionPolicy policy) {
    Tree tree({.policy = policy});
    tree.insert(ten, 5);
    tree.insert(twenty, 1);
    tree.insert(twenty, 1);  // hit twice: protected by slru
    tree.insert(thirty, 3);
    tree->match(ten, 10);
    tree->evict(1, 0);
    return 1000 - tree.pools().full.free();
  };
  EXPECT_EQ(survivors(EvictionPolicy::kLru), 40);       // B is the oldest by use
  EXPECT_EQ(survivors(EvictionPolicy::kFifo), 50);      // A was there first
  EXPECT_EQ(survivors(EvictionPolicy::kFilo), 30);      // C came last
  EXPECT_EQ(survivors(EvictionPolicy::kMru), 50);       // A was used last
  EXPECT_EQ(survivors(EvictionPolicy::kPriority), 40);  // B has the least priority
  EXPECT_EQ(survivors(EvictionPolicy::kSlru), 30);      // of A and C, on probation, C is older
}

// Tokens past what keeps the next prefill short are free to go: history 40, budget 40 + 5 - 20.
TEST(RadixTree, TlruEvictsTailsOfLongConversationsFirst) {
  Tree tree({.policy = EvictionPolicy::kTlru, .tlru_threshold = 20, .tlru_next_prompt = 5});
  tree.insert(content({{1, 25}}));
  tree.insert(content({{1, 25}, {2, 15}}));  // the tail begins at 25 >= 25: safe to evict
  const kv::TokenRuns brief = content({{5, 10}});
  tree.insert(brief);  // 10 + 5 - 20 < 0: safe as well, but newer
  tree->match(content({{1, 25}, {2, 15}}), 40);
  tree->match(brief, 10);
  tree->evict(1, 0);
  EXPECT_EQ(tree.pools().full.free(), 1000 - 50 + 15);
  tree->evict(1, 0);  // what is left of the conversation is within its budget, though older
  EXPECT_EQ(tree.known(brief), 0);
}

TEST(RadixTree, WeightedOrderIsDepthFirstByWaitingRequests) {
  Tree tree;
  const NodeId a = tree.insert(content({{1, 5}, {10, 5}})).node;
  const NodeId b = tree.insert(content({{1, 5}, {11, 5}})).node;
  const NodeId c = tree.insert(content({{2, 5}})).node;
  // Under segment 1 wait three requests, of which two at b; one waits at c, one at nothing known.
  const std::vector<NodeId> ends{c, a, b, kRoot, b};
  EXPECT_EQ(tree->weighted_order(ends), (std::vector<std::size_t>{2, 4, 1, 0, 3}));
  EXPECT_TRUE(tree->weighted_order({}).empty());
}

// --- sliding windows

TEST(RadixWindow, AHitNeedsAWindowOfWindowSlots) {
  Tree tree({.window = 6});
  const kv::TokenRuns all = content({{1, 20}});
  tree.insert(all, 0, 10);  // slots below 10 are given back: a tombstone, then the live part
  EXPECT_EQ(tree->window_evictable(), 10);
  EXPECT_EQ(tree->nodes(), 3);  // [0, 10), [10, 14), and [14, 20), so that a lock holds a window
  EXPECT_EQ(tree->match(all, 20).length, 20);
  // Five tokens after the tombstone are less than a window: nothing is a hit, all is known.
  const RadixTree::Match found = tree->match(all, 15);
  EXPECT_EQ(found.length, 0);
  EXPECT_EQ(found.branch, 15);
  EXPECT_EQ(tree->match(all, 16).length, 16);
  tree->check(0);
}

TEST(RadixWindow, ALockHoldsOneWindow) {
  Tree tree({.window = 6});
  const RadixTree::Inserted leaf = tree.insert(content({{1, 20}}));
  const WindowMark mark = tree->lock(leaf.node);
  EXPECT_EQ(tree->locked(), 20);
  EXPECT_EQ(tree->window_locked(), 6);
  EXPECT_EQ(tree->window_evictable(), 14);
  tree->evict(0, 1);  // the inner node loses its window slots, not its full ones
  EXPECT_EQ(tree.pools().window.free(), 500 - 6);
  EXPECT_EQ(tree.pools().full.free(), 980);
  tree->check(1);
  tree->unlock(leaf.node, mark);
  EXPECT_EQ(tree->window_evictable(), 6);
  tree->evict(0, 1);  // a leaf goes whole
  EXPECT_EQ(tree.pools().full.free(), 986);
  tree->check(0);
}

TEST(RadixWindow, ATombstoneTakesOverANewcomersWindowSlots) {
  Tree tree({.window = 6});
  const kv::TokenRuns all = content({{1, 20}});
  tree.insert(all, 0, 20);  // all of it a tombstone
  EXPECT_EQ(tree.pools().window.free(), 500);
  tree.insert(all, 0, 12);                   // the newcomer has window slots for [12, 20)
  EXPECT_EQ(tree.pools().full.free(), 980);  // one copy
  EXPECT_EQ(tree->window_evictable(), 8);
  EXPECT_EQ(tree->match(all, 20).length, 20);
  tree->check(0);
}

}  // namespace
}  // namespace oomcast::sglang
