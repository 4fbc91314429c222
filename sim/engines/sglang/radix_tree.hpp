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
// Recurrent layers: a node owns the state at its end, or none. A hit ends at the deepest node that
// has one. States are evicted by an order of their own, from leaves with their KV and from inner
// nodes alone; only the node that a request works on is locked against that.
//
// Sliding-window models (0.5.23): a node owns the window slots of its whole edge, or none (a
// "tombstone"). A hit needs a window's length of them up to its end. Window slots are evicted by
// an order of their own, from leaves and from inner nodes.
//
// Host tier (HiCache, 0.5.21 on; radix_host.cpp): a node has slots on the card, on the host, or
// both. Nodes on the card reach to the root. Eviction from the card leaves a node that is on the
// host too in the tree. Copies are queued here and done by somebody else, who tells when they are
// over.
//
// Nodes live in slots that are reused; a node id is valid while somebody locks the node.
#pragma once

#include <tsl/robin_map.h>

#include <compare>
#include <cstdint>
#include <list>
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
  std::int64_t window = 0;      // 0: no sliding window
  std::int64_t state_grid = 0;  // states are made at multiples of it; 0: no recurrent layers
  bool unified = true;
  std::optional<HostTierSettings> host = {};
};

// The copy of a node, to or from the host: holds the node until it is over.
struct NodeCopy {
  NodeId node = kRoot;
  std::int64_t number = 0;
  bool load = false;
};
// Copies in one direction that go as one.
struct CopyBatch {
  std::int64_t tokens = 0;
  std::vector<NodeCopy> nodes;
};

class RadixTree {
 public:
  // Slots of evicted nodes go back to `pools`, which must outlive the tree.
  RadixTree(const TreeSettings& settings, SlotPools& pools);

  struct Match {
    NodeId node = kRoot;
    std::int64_t length = 0;
    // Window trees: content is known up to here, further than `length`, but its window slots are
    // gone. Recurrent layers: likewise, the last point on the grid up to there.
    std::optional<std::int64_t> branch;
    // Host trees: the deepest node known, and tokens from `node` to it, on the host alone.
    NodeId end = kRoot;
    std::int64_t host = 0;
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
    bool took_state = false;    // recurrent layers: there was no state at the end
  };
  // Takes over the slots of [shared, length). The unified tree gives back slots of what was there
  // already; before, the caller gives back [shared, existing).
  Inserted insert(const kv::TokenRuns& content, const Insertion& insertion);

  WindowMark lock(NodeId node);
  void unlock(NodeId node, WindowMark mark);

  // Evicts until the pools have so many slots more than now, where they can. 0.5.23's order: leaves
  // for the full pool, then the window order.
  void evict(std::int64_t full_short, std::int64_t window_short);
  // Evicts states until their pool has so many slots more than now, where it can.
  void evict_states(std::int64_t slots);
  // Evicts leaves until so many tokens are evicted.
  void evict_count(std::int64_t tokens);

  // Brings the `tokens` above `end` that are on the host alone back to the card, if they are worth
  // it and there is room; the copy is queued, and holds `end`. Whether it did.
  bool load_back(NodeId end, std::int64_t tokens);
  // What was queued since the last call: copies to the host, those the tree had to wait for while
  // it evicted (tokens alone: they are over), copies to the card.
  [[nodiscard]] CopyBatch take_writes();
  [[nodiscard]] std::int64_t take_awaited();
  [[nodiscard]] CopyBatch take_loads();
  [[nodiscard]] bool has_queued_copies() const {
    return !writes_.nodes.empty() || !loads_.nodes.empty() || awaited_ > 0;
  }
  void copy_over(const NodeCopy& copy);

  [[nodiscard]] std::int64_t host_used() const { return host_.total() - host_.free(); }
  // Locks that queued copies and those under way hold.
  [[nodiscard]] std::int64_t copy_locks() const { return copy_locks_; }

  [[nodiscard]] std::int64_t evictable() const { return evictable_; }
  [[nodiscard]] std::int64_t locked() const { return locked_; }
  [[nodiscard]] std::int64_t window_evictable() const { return window_evictable_; }
  [[nodiscard]] std::int64_t window_locked() const { return window_locked_; }
  [[nodiscard]] std::int64_t states_evictable() const { return states_evictable_; }
  [[nodiscard]] std::int64_t states_locked() const { return states_locked_; }
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

    // On the card always but for host trees.
    bool on_card = true;
    std::int32_t card_children = 0;
    bool on_host = false;
    std::int64_t write = 0;  // copy under way to the host
    std::int64_t load = 0;   // ... and from it
    std::int64_t host_locks = 0;
    std::int64_t host_mark = 0;  // the load whose host lock ends here
    bool is_host_leaf = false;   // in host_leaves_, under `host_leaf_key`
    LeafKey host_leaf_key;
    std::optional<std::list<NodeId>::iterator> duplicate;  // place in duplicates_

    bool has_window = false;
    std::int64_t window_locks = 0;
    WindowMark mark = 0;
    bool has_state = false;
    std::int64_t state_locks = 0;
    NodeId newer = kNoNode;  // order of windows, or of states: no tree has both
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
  bool evict_leaf(NodeId node);  // false: it has to stay for now
  void delete_node(NodeId node);
  std::int64_t tick() { return ++clock_; }
  void touch(NodeId node, std::int64_t time);
  void stamp_path(NodeId node);
  [[nodiscard]] LeafKey key_of(NodeId node) const;
  void update_leaf(NodeId node);
  void raise_history(NodeId node);
  void count_hit(NodeId node, std::int64_t end, const Insertion& insertion);
  void set_leaf(std::set<LeafKey>& leaves, bool& listed, LeafKey& key, bool leaf, NodeId node);

  // radix_host.cpp
  void put_on_card(NodeId node);
  void back_up(NodeId node);
  bool write(NodeId node, bool awaited);
  std::int64_t evict_host(std::int64_t tokens);
  void reclaim_duplicates(std::int64_t tokens, std::int64_t& freed);
  void demote(NodeId node);
  bool drop_with_host_children(NodeId node);
  [[nodiscard]] bool is_held(NodeId node) const;
  void track_duplicate(NodeId node);
  void split_host(NodeId upper, NodeId lower);
  void unlock_host(NodeId node, std::int64_t mark);
  void check_host() const;

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
  void check_order(std::int64_t owners) const;

  // radix_state.cpp
  void refresh_state(NodeId node);
  bool own_state(NodeId node, bool is_new);
  void drop_state(NodeId node);
  void lock_state(NodeId node);
  void unlock_state(NodeId node);
  void check_states() const;

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

  SlotPool host_{0};
  std::set<LeafKey> host_leaves_;
  std::list<NodeId> duplicates_;  // write back: may be on card and host both, oldest first
  CopyBatch writes_;
  CopyBatch loads_;
  std::int64_t awaited_ = 0;
  std::int64_t next_copy_ = 1;
  std::int64_t copy_locks_ = 0;

  std::int64_t window_evictable_ = 0;
  std::int64_t window_locked_ = 0;
  std::int64_t states_evictable_ = 0;
  std::int64_t states_locked_ = 0;
  WindowMark next_mark_ = 1;
  NodeId newest_ = kNoNode;
  NodeId oldest_ = kNoNode;
};

}  // namespace oomcast::sglang
