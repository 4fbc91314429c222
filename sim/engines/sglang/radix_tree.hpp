// SGLang's prefix tree: edges are spans of content, nodes own KV slots, leaves nobody uses are
// evicted. Two generations of rules: mem_cache/radix_cache.py up to 0.5.18, and the unified tree:
//   - A lookup that ends inside an edge splits it, at a page: lookups change the tree.
//   - Leaf: no children and no lock. Whole leaves are evicted, in the policy's order.
//   - A lock counts on a node and all its ancestors.
//   - Access times. Before: a walk stamps what it meets, all with one time. Unified: a lookup
//   stamps
//     the path of its hit, an insert each node as it walks, and the lower half of a split is the
//     newest. (Times of a path differ a little there. No decision can depend on that: of a path one
//     node at a time is a leaf.)
//
// Sliding-window models (0.5.23): a node owns the window slots of its whole edge, or none (a
// "tombstone"). A hit needs a window's length of them up to its end. Window slots are evicted by
// an order of their own, from leaves and from inner nodes.
//
// Nodes live in slots that are reused; a node id is valid while somebody locks the node.
#pragma once

#include <tsl/robin_map.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "sim/core/digest.hpp"
#include "sim/engines/sglang/scheduler_config.hpp"
#include "sim/engines/sglang/slot_pools.hpp"
#include "sim/kv/token_runs.hpp"

namespace oomcast::sglang {

using NodeId = std::int32_t;
inline constexpr NodeId kRoot = 0;
inline constexpr NodeId kNoNode = -1;

// Where a window lock ends; 0: at the root.
using WindowMark = std::uint64_t;

struct TreeSettings {
  EvictionPolicy policy = EvictionPolicy::kLru;
  std::int64_t tlru_threshold = 0;
  std::int64_t tlru_next_prompt = 0;
  std::int64_t window = 0;  // 0: no sliding window
  bool unified = true;
};

class RadixTree {
 public:
  // Slots of evicted nodes go back to `pools`, which must outlive the tree.
  RadixTree(const TreeSettings& settings, SlotPools& pools);

  struct Match {
    NodeId node = kRoot;
    std::int64_t length = 0;
    // Window trees: content is known up to here, further than `length`, but its window slots are
    // gone.
    std::optional<std::int64_t> branch;
  };
  // The longest known prefix of the first `length` tokens, in whole pages.
  Match match(const kv::TokenRuns& content, std::int64_t length);

  struct Insertion {
    std::int64_t length = 0;     // in whole pages
    std::int64_t shared = 0;     // slots below are the tree's already
    std::int64_t published = 0;  // this request inserted so much before; counts no hits there
    std::int64_t gone = 0;       // window slots below are given back
    std::int64_t priority = 0;
  };
  struct Inserted {
    NodeId node = kRoot;        // where the content ends
    std::int64_t existing = 0;  // so much was there before
  };
  // Takes over the slots of [shared, length). The unified tree gives back slots of what was there
  // already; before, the caller gives back [shared, existing).
  Inserted insert(const kv::TokenRuns& content, const Insertion& insertion);

  WindowMark lock(NodeId node);
  void unlock(NodeId node, WindowMark mark);

  // Evicts until the pools have so many slots more than now, where they can. 0.5.23's order: leaves
  // for the full pool, then the window order.
  void evict(std::int64_t full_short, std::int64_t window_short);
  // Evicts leaves until so many tokens are evicted.
  void evict_count(std::int64_t tokens);

  [[nodiscard]] std::int64_t evictable() const { return evictable_; }
  [[nodiscard]] std::int64_t locked() const { return locked_; }
  [[nodiscard]] std::int64_t window_evictable() const { return window_evictable_; }
  [[nodiscard]] std::int64_t window_locked() const { return window_locked_; }
  [[nodiscard]] std::int64_t nodes() const { return live_ - 1; }

  // Positions of `ends` in the order of policy dfs-weight: depth first, subtrees with more of the
  // ends first, siblings by age, the ends of one node in their order.
  [[nodiscard]] std::vector<std::size_t> weighted_order(std::span<const NodeId> ends) const;

  void add_to(Digest& digest) const;
  // Aborts unless sizes, locks, leaves and the window order agree with each other. `locks` is the
  // number of locks held by requests.
  void check(std::int64_t locks) const;

 private:
  // Order of eviction, first to go first.
  struct LeafKey {
    std::int64_t rank = 0;
    std::int64_t time = 0;
    std::int64_t access = 0;
    NodeId node = kNoNode;

    friend auto operator<=>(const LeafKey&, const LeafKey&) = default;
  };
  struct Node {
    kv::TokenSpan key;
    std::int64_t length = 0;
    NodeId parent = kNoNode;
    std::int32_t children = 0;
    std::int64_t locks = 0;
    std::int64_t access = 0;
    std::int64_t creation = 0;
    std::int64_t hits = 0;
    std::int64_t priority = 0;
    std::uint64_t sibling_order = 0;  // age as a child of its parent
    std::int64_t depth = 0;           // tokens from the root to its end
    std::int64_t deepest = 0;         // tlru: the deepest end its subtree has had
    bool is_leaf = false;             // in leaves_, under `leaf_key`
    LeafKey leaf_key;

    bool has_window = false;
    std::int64_t window_locks = 0;
    WindowMark mark = 0;
    NodeId newer = kNoNode;  // window order
    NodeId older = kNoNode;
  };

  [[nodiscard]] const Node& at(NodeId node) const { return nodes_[static_cast<std::size_t>(node)]; }
  Node& at(NodeId node) { return nodes_[static_cast<std::size_t>(node)]; }
  [[nodiscard]] std::uint64_t child_key(NodeId parent, std::uint64_t front) const;
  [[nodiscard]] NodeId find_child(NodeId parent, const kv::TokenRuns& content,
                                  kv::TokenRuns::Place place) const;
  NodeId new_node();
  NodeId split(NodeId child, std::int64_t length);
  NodeId add_leaf(NodeId parent, const kv::TokenRuns& content, kv::TokenRuns::Place place,
                  std::int64_t length, std::int64_t priority);
  void remove_leaf(NodeId node);
  void evict_leaf(NodeId node);
  std::int64_t tick() { return ++clock_; }
  void touch(NodeId node, std::int64_t time);
  void stamp_path(NodeId node);
  [[nodiscard]] LeafKey key_of(NodeId node) const;
  void update_leaf(NodeId node);
  void raise_history(NodeId node);
  void count_hit(NodeId node, std::int64_t end, const Insertion& insertion);

  // radix_window.cpp
  void own_window(NodeId node);
  void drop_window(NodeId node);
  void refresh_window(NodeId node);
  void link_newer(NodeId anchor, NodeId node);
  void link_behind(NodeId anchor, NodeId node);
  void unlink(NodeId node);
  [[nodiscard]] NodeId newer_unlocked(NodeId node) const;
  std::int64_t adopt_window(NodeId node, std::int64_t start, const Insertion& insertion);
  void publish_leaf_window(NodeId leaf, std::int64_t start, const Insertion& insertion);
  void evict_window(std::int64_t wanted, std::int64_t freed_before, std::int64_t target);
  WindowMark lock_window(NodeId node);
  void unlock_window(NodeId node, WindowMark mark);
  void check_window() const;

  TreeSettings settings_;
  SlotPools& pools_;
  std::vector<Node> nodes_;
  std::vector<NodeId> spare_;
  std::int64_t live_ = 1;
  tsl::robin_map<std::uint64_t, NodeId> children_;  // never iterated
  std::set<LeafKey> leaves_;
  std::int64_t clock_ = 0;
  std::uint64_t next_sibling_ = 0;
  std::int64_t evictable_ = 0;
  std::int64_t locked_ = 0;

  std::int64_t window_evictable_ = 0;
  std::int64_t window_locked_ = 0;
  WindowMark next_mark_ = 1;
  NodeId newest_ = kNoNode;
  NodeId oldest_ = kNoNode;
};

}  // namespace oomcast::sglang
