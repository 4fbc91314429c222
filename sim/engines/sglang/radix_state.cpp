// The tree's side of recurrent layers (mem_cache/unified_cache/components/mamba.py): which nodes
// own a state, in what order states are evicted, and locks.
#include "sim/core/error.hpp"
#include "sim/engines/sglang/radix_tree.hpp"

namespace oomcast::sglang {

// A lookup uses the state of its last node alone; those of its ancestors age.
void RadixTree::refresh_state(NodeId node) {
  if (at(node).has_state) {
    unlink(node);
    link_newer(kNoNode, node);
  }
}

// An insert brings a state for its last node. Whether the node had none.
bool RadixTree::own_state(NodeId node, bool is_new) {
  const bool takes = !at(node).has_state;
  if (takes) {
    at(node).has_state = true;
    link_newer(kNoNode, node);
    ++(at(node).state_locks > 0 ? states_locked_ : states_evictable_);
  } else {
    refresh_state(node);
  }
  if (!is_new) {
    touch(node, tick());
  }
  return takes;
}

void RadixTree::drop_state(NodeId node) {
  Node& dropped = at(node);
  if (!dropped.has_state) {
    return;
  }
  OOMCAST_CHECK(dropped.state_locks == 0, "the state of the locked node {} is evicted", node);
  dropped.has_state = false;
  unlink(node);
  --states_evictable_;
  pools_.state.give(1);
}

void RadixTree::evict_states(std::int64_t slots) {
  const std::int64_t target = pools_.state.free() + slots;
  NodeId node = oldest_;
  while (node != kNoNode && pools_.state.free() < target) {
    const NodeId next = at(node).newer;
    if (at(node).state_locks == 0) {
      if (at(node).is_leaf) {
        evict_leaf(node);
      } else {
        drop_state(node);
      }
    }
    node = next;
  }
}

void RadixTree::lock_state(NodeId node) {
  if (settings_.state_grid == 0 || node == kRoot) {
    return;
  }
  if (at(node).state_locks++ == 0 && at(node).has_state) {
    --states_evictable_;
    ++states_locked_;
  }
}

void RadixTree::unlock_state(NodeId node) {
  if (settings_.state_grid == 0 || node == kRoot) {
    return;
  }
  OOMCAST_CHECK(at(node).state_locks > 0, "the state of node {} is unlocked once too often", node);
  if (--at(node).state_locks == 0 && at(node).has_state) {
    ++states_evictable_;
    --states_locked_;
  }
}

void RadixTree::check_states() const {
  std::int64_t evictable = 0;
  std::int64_t locked = 0;
  for (const Node& node : nodes_) {
    if (node.length > 0) {
      OOMCAST_CHECK(node.state_locks <= node.locks, "{} locks of a state, {} of its node",
                    node.state_locks, node.locks);
      (node.state_locks > 0 ? locked : evictable) += node.has_state ? 1 : 0;
    }
  }
  OOMCAST_CHECK(evictable == states_evictable_ && locked == states_locked_,
                "states {} + {}, counted {} + {}", states_evictable_, states_locked_, evictable,
                locked);
  check_order(evictable + locked);
}

}  // namespace oomcast::sglang
