// The tree's side of sliding-window layers (mem_cache/unified_cache/components/swa.py): who owns
// window slots, in what order they are evicted, and how far locks reach.
#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/engines/sglang/radix_tree.hpp"

namespace oomcast::sglang {

void RadixTree::link_newer(NodeId anchor, NodeId node) {
  // Between `anchor` and what is newer than it; kNoNode: the newest of all.
  Node& linked = at(node);
  linked.older = anchor == kNoNode ? newest_ : anchor;
  linked.newer = anchor == kNoNode ? kNoNode : at(anchor).newer;
  (linked.newer == kNoNode ? newest_ : at(linked.newer).older) = node;
  (linked.older == kNoNode ? oldest_ : at(linked.older).newer) = node;
}

void RadixTree::link_behind(NodeId anchor, NodeId node) {
  Node& linked = at(node);
  linked.newer = anchor;
  linked.older = at(anchor).older;
  at(anchor).older = node;
  (linked.older == kNoNode ? oldest_ : at(linked.older).newer) = node;
}

void RadixTree::unlink(NodeId node) {
  Node& gone = at(node);
  (gone.newer == kNoNode ? newest_ : at(gone.newer).older) = gone.older;
  (gone.older == kNoNode ? oldest_ : at(gone.older).newer) = gone.newer;
  gone.newer = kNoNode;
  gone.older = kNoNode;
}

void RadixTree::own_window(NodeId node) {
  at(node).has_window = true;
  link_newer(kNoNode, node);
  (at(node).window_locks > 0 ? window_locked_ : window_evictable_) += at(node).length;
}

void RadixTree::drop_window(NodeId node) {
  Node& dropped = at(node);
  if (!dropped.has_window) {
    return;
  }
  OOMCAST_CHECK(dropped.window_locks == 0, "window slots of the locked node {} evicted", node);
  dropped.has_window = false;
  unlink(node);
  window_evictable_ -= dropped.length;
  pools_.window.give(dropped.length);
}

// Moves what the window of the next token can see, and a page, to the recent end: deepest node most
// recent.
void RadixTree::refresh_window(NodeId node) {
  NodeId behind = kNoNode;
  std::int64_t covered = 0;
  while (node != kRoot && covered < settings_.window + pools_.page) {
    if (at(node).has_window) {
      unlink(node);
      if (behind == kNoNode) {
        link_newer(kNoNode, node);
      } else {
        link_behind(behind, node);
      }
      behind = node;
    }
    covered += at(node).length;
    node = at(node).parent;
  }
}

NodeId RadixTree::newer_unlocked(NodeId node) const {
  while (node != kNoNode && at(node).window_locks > 0) {
    node = at(node).newer;
  }
  return node;
}

// A tombstone takes over the window slots of a request that computed the same content again. One of
// the two full copies goes. Returns where that begins, or the node's end.
std::int64_t RadixTree::adopt_window(NodeId node, std::int64_t start, const Insertion& insertion) {
  const std::int64_t end = start + at(node).length;
  if (settings_.window == 0 || insertion.shared >= end || at(node).has_window) {
    return end;
  }
  const std::int64_t from = std::max(start, insertion.gone);
  if (from >= end) {
    return end;
  }
  if (from > start) {
    split(node, from - start);
  }
  pools_.full.give(end - from);
  own_window(node);
  return from;
}

// A new leaf is cut where the request's window slots begin, and once more so that a lock on its end
// does not hold more than a window.
void RadixTree::publish_leaf_window(NodeId leaf, std::int64_t start, const Insertion& insertion) {
  const std::int64_t end = start + at(leaf).length;
  const std::int64_t from = std::max(start, insertion.gone);
  if (from >= end) {
    return;
  }
  if (from > start) {
    split(leaf, from - start);
  }
  const std::int64_t tail = align_up(settings_.window, pools_.page);
  if (end - from > tail) {
    own_window(split(leaf, end - from - tail));
  }
  own_window(leaf);
}

void RadixTree::evict_window(std::int64_t wanted, std::int64_t freed, std::int64_t target) {
  NodeId node = newer_unlocked(oldest_);
  while (node != kNoNode && freed < wanted && pools_.window.free() < target) {
    const NodeId next = newer_unlocked(at(node).newer);
    freed += at(node).length;
    if (at(node).is_leaf) {
      evict_leaf(node);
    } else {
      drop_window(node);
    }
    node = next;
  }
}

// Counts on every node back to where a window is covered, tombstones included. The last of them is
// marked; a split moves the mark to the upper part, so the unlock finds the same stretch.
WindowMark RadixTree::lock_window(NodeId node) {
  std::int64_t covered = 0;
  for (NodeId up = node; up != kRoot && covered < settings_.window; up = at(up).parent) {
    Node& held = at(up);
    if (held.window_locks++ == 0 && held.has_window) {
      window_evictable_ -= held.length;
      window_locked_ += held.length;
    }
    covered += held.length;
    if (covered >= settings_.window) {
      held.mark = held.mark != 0 ? held.mark : next_mark_++;
      return held.mark;
    }
  }
  return 0;
}

void RadixTree::unlock_window(NodeId node, WindowMark mark) {
  for (NodeId up = node; up != kRoot; up = at(up).parent) {
    Node& held = at(up);
    OOMCAST_CHECK(held.window_locks > 0, "window of node {} is unlocked once too often", up);
    if (--held.window_locks == 0) {
      if (held.has_window) {
        window_evictable_ += held.length;
        window_locked_ -= held.length;
      }
      update_leaf(up);
    }
    if (mark != 0 && held.mark == mark) {
      return;
    }
  }
}

void RadixTree::check_window() const {
  std::int64_t evictable = 0;
  std::int64_t locked = 0;
  std::int64_t owners = 0;
  for (const Node& node : nodes_) {
    if (node.length > 0 && node.has_window) {
      ++owners;
      (node.window_locks > 0 ? locked : evictable) += node.length;
    }
  }
  OOMCAST_CHECK(evictable == window_evictable_ && locked == window_locked_,
                "window sizes {} + {}, counted {} + {}", window_evictable_, window_locked_,
                evictable, locked);
  check_order(owners);
}

void RadixTree::check_order(std::int64_t owners) const {
  std::int64_t listed = 0;
  for (NodeId node = oldest_; node != kNoNode; node = at(node).newer) {
    ++listed;
    OOMCAST_CHECK(at(node).newer == kNoNode ? node == newest_ : at(at(node).newer).older == node,
                  "the order of windows or states is torn at node {}", node);
  }
  OOMCAST_CHECK(listed == owners, "{} nodes in the order of windows or states, {} own some", listed,
                owners);
}

}  // namespace oomcast::sglang
