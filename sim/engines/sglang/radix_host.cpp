// The tree's side of the host tier (HiCache; unified_tree_core.py, components/full.py and
// unified_radix_cache.py of 0.5.23): which nodes are copied to the host and when, what leaves the
// card or the host, and what comes back.
//
// Write through: an insert copies a node that was hit often enough, ancestors first; the copy locks
// the node. Write back: eviction from the card copies, and waits for it.
#include <algorithm>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/engines/sglang/radix_tree.hpp"

namespace oomcast::sglang {
namespace {

// Shorter hits on the host are computed again (load_back_threshold).
constexpr std::int64_t kLeastLoad = 10;

}  // namespace

// Its slots on the card are there now, whoever gave them.
void RadixTree::put_on_card(NodeId node) {
  Node& found = at(node);
  found.on_card = true;
  (found.locks > 0 ? locked_ : evictable_) += found.length;
  ++at(found.parent).card_children;
  update_leaf(node);
  update_leaf(found.parent);
}

// With the ancestors that are not on the host yet, top down; ends where there is no room.
void RadixTree::back_up(NodeId node) {
  std::vector<NodeId> chain;
  for (NodeId up = node; up != kRoot && !at(up).on_host; up = at(up).parent) {
    chain.push_back(up);
  }
  for (auto next = chain.rbegin(); next != chain.rend(); ++next) {
    if (!write(*next, false)) {
      return;
    }
  }
}

bool RadixTree::write(NodeId node, bool awaited) {
  const std::int64_t length = at(node).length;
  if (const std::int64_t missing = length - host_.free(); missing > 0) {
    if (evict_host(missing) < missing) {
      return false;
    }
  }
  host_.take(length);
  at(node).on_host = true;
  if (awaited) {
    awaited_ += length;
    track_duplicate(node);
    return true;
  }
  lock(node);
  ++copy_locks_;
  at(node).write = next_copy_;
  writes_.tokens += length;
  writes_.nodes.push_back({node, next_copy_++, false});
  return true;
}

// Returns what it freed, which may be less.
std::int64_t RadixTree::evict_host(std::int64_t tokens) {
  std::int64_t freed = 0;
  if (settings_.host->writes_back()) {
    reclaim_duplicates(tokens, freed);
  }
  while (freed < tokens && !host_leaves_.empty()) {
    const NodeId node = host_leaves_.begin()->node;
    freed += at(node).length;
    delete_node(node);
  }
  return freed;
}

// Write back: what is on the card too goes first, and of it last what the card is about to evict.
void RadixTree::reclaim_duplicates(std::int64_t tokens, std::int64_t& freed) {
  for (const bool spare_leaves : {true, false}) {
    for (auto entry = duplicates_.begin(); entry != duplicates_.end() && freed < tokens;) {
      Node& node = at(*entry);
      const bool both = node.on_card && node.on_host;
      const bool kept = (spare_leaves && node.is_leaf) || node.write != 0 || node.load != 0 ||
                        node.host_locks > 0;
      if (both && kept) {
        ++entry;
        continue;
      }
      if (both) {
        node.on_host = false;
        host_.give(node.length);
        freed += node.length;
      }
      node.duplicate.reset();
      entry = duplicates_.erase(entry);
    }
  }
}

// Off the card; it stays in the tree.
void RadixTree::demote(NodeId node) {
  Node& gone = at(node);
  gone.on_card = false;
  evictable_ -= gone.length;
  pools_.full.give(gone.length);
  --at(gone.parent).card_children;
  update_leaf(node);
  update_leaf(gone.parent);
}

bool RadixTree::is_held(NodeId node) const {
  const Node& held = at(node);
  return held.locks > 0 || held.host_locks > 0 || held.write != 0 || held.load != 0;
}

// Write back without room on the host: the leaf goes, and all below it that is on the host alone.
// Not while some of it is in use.
bool RadixTree::drop_with_host_children(NodeId node) {
  std::vector<NodeId> below;
  for (NodeId id = 1; at(node).children > 0 && id < static_cast<NodeId>(nodes_.size()); ++id) {
    NodeId up = id;
    while (up > kRoot && up != node && at(up).length > 0) {
      up = at(up).parent;
    }
    if (up == node && id != node && at(id).length > 0) {
      if (is_held(id)) {
        return false;
      }
      below.push_back(id);
    }
  }
  std::sort(below.begin(), below.end(),
            [&](NodeId left, NodeId right) { return at(left).depth > at(right).depth; });
  for (const NodeId id : below) {
    delete_node(id);
  }
  delete_node(node);
  return true;
}

void RadixTree::track_duplicate(NodeId node) {
  Node& found = at(node);
  if (!settings_.host->writes_back()) {
    return;
  }
  const bool both = found.on_card && found.on_host && found.write == 0 && found.load == 0;
  if (both && !found.duplicate) {
    found.duplicate = duplicates_.insert(duplicates_.end(), node);
  } else if (!both && found.duplicate) {
    duplicates_.erase(*found.duplicate);
    found.duplicate.reset();
  }
}

void RadixTree::split_host(NodeId upper, NodeId lower) {
  Node& above = at(upper);
  Node& below = at(lower);
  above.on_card = below.on_card;
  above.card_children = below.on_card ? 1 : 0;
  above.on_host = below.on_host;
  above.write = below.write;
  above.load = below.load;
  above.host_locks = below.host_locks;
  above.host_mark = below.host_mark;
  below.host_mark = 0;
  track_duplicate(upper);
}

bool RadixTree::load_back(NodeId end, std::int64_t tokens) {
  if (tokens < kLeastLoad) {
    return false;
  }
  const std::int64_t number = next_copy_++;
  lock(end);
  ++at(end).host_locks;
  at(end).host_mark = number;
  if (const std::int64_t missing = tokens - pools_.full.free(); missing > 0) {
    evict(missing, 0);
    if (pools_.full.free() < tokens) {
      unlock(end, 0);
      unlock_host(end, number);
      return false;
    }
  }
  pools_.full.take(tokens);
  ++copy_locks_;
  for (NodeId up = end; !at(up).on_card; up = at(up).parent) {
    at(up).load = number;
    put_on_card(up);
  }
  loads_.tokens += tokens;
  loads_.nodes.push_back({end, number, true});
  return true;
}

// A split moves the mark to the upper part, so the stretch that was locked ends there.
void RadixTree::unlock_host(NodeId node, std::int64_t mark) {
  for (NodeId up = node;; up = at(up).parent) {
    Node& held = at(up);
    OOMCAST_CHECK(held.host_locks > 0, "node {} is unlocked on the host once too often", up);
    --held.host_locks;
    update_leaf(up);
    if (held.host_mark == mark) {
      held.host_mark = 0;
      return;
    }
  }
}

CopyBatch RadixTree::take_writes() { return std::exchange(writes_, {}); }
std::int64_t RadixTree::take_awaited() { return std::exchange(awaited_, 0); }
CopyBatch RadixTree::take_loads() { return std::exchange(loads_, {}); }

void RadixTree::copy_over(const NodeCopy& copy) {
  unlock(copy.node, 0);
  --copy_locks_;
  if (copy.load) {
    unlock_host(copy.node, copy.number);
  }
  for (NodeId up = copy.node; up != kRoot; up = at(up).parent) {
    Node& node = at(up);
    if (copy.load && node.load == copy.number) {
      node.load = 0;
      track_duplicate(up);
    } else if (!copy.load && node.write == copy.number) {
      node.write = 0;
      track_duplicate(up);
    }
  }
}

void RadixTree::check_host() const {
  std::int64_t used = 0;
  std::int64_t leaves = 0;
  std::int64_t tracked = 0;
  for (NodeId id = 1; id < static_cast<NodeId>(nodes_.size()); ++id) {
    const Node& node = at(id);
    if (node.length == 0) {
      continue;
    }
    used += node.on_host ? node.length : 0;
    leaves += node.is_host_leaf ? 1 : 0;
    tracked += node.duplicate ? 1 : 0;
    OOMCAST_CHECK(node.on_card || node.on_host, "node {} is nowhere", id);
    OOMCAST_CHECK(!node.on_card || node.parent == kRoot || at(node.parent).on_card,
                  "node {} is on the card, its parent is not", id);
    const bool through = settings_.host && !settings_.host->writes_back();
    OOMCAST_CHECK(!through || !node.on_host || node.parent == kRoot || at(node.parent).on_host,
                  "node {} is on the host, its parent is not", id);
    const bool leaf =
        !node.on_card && node.children == 0 && node.locks == 0 && node.host_locks == 0;
    OOMCAST_CHECK(leaf == node.is_host_leaf, "node {} is wrongly (no) leaf of the host", id);
    OOMCAST_CHECK(
        !leaf || (host_leaves_.contains(node.host_leaf_key) && node.host_leaf_key == key_of(id)),
        "leaf {} stands at a wrong place in the host's order", id);
  }
  OOMCAST_CHECK(used == host_used(), "{} host slots used, nodes have {}", host_used(), used);
  OOMCAST_CHECK(leaves == static_cast<std::int64_t>(host_leaves_.size()),
                "{} host leaves, {} listed", leaves, host_leaves_.size());
  OOMCAST_CHECK(tracked == static_cast<std::int64_t>(duplicates_.size()),
                "{} nodes on both, {} tracked", tracked, duplicates_.size());
}

}  // namespace oomcast::sglang
