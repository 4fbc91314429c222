#include "sim/engines/sglang/radix_tree.hpp"

#include <algorithm>

#include "sim/core/error.hpp"

namespace oomcast::sglang {

RadixTree::RadixTree(const TreeSettings& settings, SlotPools& pools)
    : settings_(settings),
      pools_(pools),
      nodes_(1),
      host_(settings.host ? settings.host->pool.count() : 0) {}

std::uint64_t RadixTree::child_key(NodeId parent, std::uint64_t front) const {
  return mix64(front ^ mix64(static_cast<std::uint64_t>(parent)));
}

NodeId RadixTree::find_child(NodeId parent, const kv::TokenRuns& content,
                             kv::TokenRuns::Place place) const {
  const auto found = children_.find(child_key(parent, content.hash(place, pools_.page)));
  if (found == children_.end()) {
    return kNoNode;
  }
  // Content of the same hash is not yet the same content.
  const bool same = content.common(at(found->second).key, place, pools_.page) == pools_.page;
  return same ? found->second : kNoNode;
}

NodeId RadixTree::new_node() {
  ++live_;
  NodeId node = static_cast<NodeId>(nodes_.size());
  if (spare_.empty()) {
    nodes_.emplace_back();
  } else {
    node = spare_.back();
    spare_.pop_back();
    at(node) = Node{};
  }
  at(node).access = tick();
  at(node).creation = tick();
  return node;
}

RadixTree::Match RadixTree::match(const kv::TokenRuns& content, std::int64_t length) {
  length = pools_.floor(length);
  Match best;
  if (length == 0) {
    return best;
  }
  const std::int64_t walk_time = settings_.unified ? 0 : tick();
  NodeId node = kRoot;
  std::int64_t known = 0;
  // Tokens with window slots without a gap up to here; the root has any number of them.
  std::int64_t window_run = settings_.window;
  kv::TokenRuns::Place place = content.place(0);
  while (known < length) {
    NodeId child = find_child(node, content, place);
    if (child == kNoNode) {
      break;
    }
    if (!settings_.unified) {
      touch(child, walk_time);
    }
    const std::int64_t common = pools_.floor(content.common(at(child).key, place, length - known));
    const bool whole = common == at(child).length;
    node = whole ? child : split(child, common);
    known += common;
    content.advance(place, common);
    window_run = at(node).has_window ? window_run + common : 0;
    if (!at(node).on_card) {
      best.host += common;
    } else if ((settings_.window == 0 || (at(node).has_window && window_run >= settings_.window)) &&
               (settings_.state_grid == 0 || at(node).has_state)) {
      best.node = node;
      best.length = known;
    }
    if (!whole) {
      break;
    }
  }
  if (settings_.window > 0) {
    refresh_window(best.node);
    if (known > best.length) {
      best.branch = known;
    }
  }
  if (settings_.state_grid > 0) {
    refresh_state(best.node);
    if (const std::int64_t point = known - known % settings_.state_grid; point > best.length) {
      best.branch = point;
    }
  }
  best.end = best.host > 0 ? node : best.node;
  if (settings_.unified) {
    stamp_path(best.end);
  }
  return best;
}

// The upper part becomes a new node, so that whoever holds the child still holds all of it.
NodeId RadixTree::split(NodeId child, std::int64_t length) {
  const NodeId upper = new_node();
  Node& below = at(child);
  Node& above = at(upper);
  children_[child_key(below.parent, kv::hash_front(below.key, pools_.page))] = upper;
  above.key = kv::cut_front(below.key, length);
  children_[child_key(upper, kv::hash_front(below.key, pools_.page))] = child;
  above.length = length;
  below.length -= length;
  above.parent = below.parent;
  below.parent = upper;
  above.children = 1;
  above.sibling_order = below.sibling_order;
  below.sibling_order = next_sibling_++;
  above.locks = below.locks;
  above.priority = below.priority;
  above.depth = below.depth - below.length;
  above.deepest = below.deepest;
  if (settings_.unified) {
    above.hits = below.hits;
    above.creation = below.creation;
  }
  above.window_locks = below.window_locks;
  above.mark = below.mark;
  below.mark = 0;
  above.has_window = below.has_window;
  if (above.has_window) {
    link_behind(child, upper);
  }
  if (settings_.host) {
    split_host(upper, child);
  } else {
    above.card_children = 1;
  }
  if (settings_.unified) {
    below.access = tick();
  }
  update_leaf(child);
  return upper;
}

RadixTree::Inserted RadixTree::insert(const kv::TokenRuns& content, const Insertion& insertion) {
  Inserted result;
  if (insertion.length == 0) {
    return result;
  }
  const std::int64_t walk_time = settings_.unified ? 0 : tick();
  NodeId node = kRoot;
  std::int64_t start = 0;
  kv::TokenRuns::Place place = content.place(0);
  while (start < insertion.length) {
    const NodeId child = find_child(node, content, place);
    if (child == kNoNode) {
      break;
    }
    touch(child, settings_.unified ? tick() : walk_time);
    const std::int64_t common =
        pools_.floor(content.common(at(child).key, place, insertion.length - start));
    node = common == at(child).length ? child : split(child, common);
    at(node).priority = std::max(at(node).priority, insertion.priority);
    update_leaf(node);
    if (!at(node).on_card) {
      OOMCAST_CHECK(insertion.shared <= start, "a request has slots of node {}, which has none",
                    node);
      put_on_card(node);
      track_duplicate(node);
      count_hit(node, start + common, insertion);
    } else if (settings_.unified) {
      const std::int64_t adopted_from = adopt_window(node, start, insertion);
      const std::int64_t again = std::max(insertion.shared, start);
      if (again < adopted_from) {
        pools_.full.give(adopted_from - again);
        if (pools_.windowed) {
          pools_.window.give(
              std::max<std::int64_t>(adopted_from - std::max(again, insertion.gone), 0));
        }
      }
      count_hit(node, start + common, insertion);
    }
    start += common;
    content.advance(place, common);
  }
  result.existing = start;
  const bool adds = start < insertion.length;
  if (adds) {
    node = add_leaf(node, content, place, insertion.length - start, insertion.priority);
    if (settings_.window > 0) {
      publish_leaf_window(node, start, insertion);
    }
  }
  result.node = node;
  if (settings_.window > 0) {
    refresh_window(node);
  }
  if (settings_.state_grid > 0) {
    result.took_state = own_state(node, adds);
  }
  if (settings_.unified && adds) {
    count_hit(node, insertion.length, insertion);
  }
  return result;
}

void RadixTree::count_hit(NodeId node, std::int64_t end, const Insertion& insertion) {
  if (end <= insertion.published || (settings_.host && settings_.host->writes_back())) {
    return;
  }
  ++at(node).hits;
  update_leaf(node);
  if (settings_.host && !at(node).on_host && at(node).hits >= settings_.host->write_hits()) {
    back_up(node);
  }
}

NodeId RadixTree::add_leaf(NodeId parent, const kv::TokenRuns& content, kv::TokenRuns::Place place,
                           std::int64_t length, std::int64_t priority) {
  const NodeId node = new_node();
  Node& leaf = at(node);
  content.copy(place, length, leaf.key);
  leaf.length = length;
  leaf.parent = parent;
  leaf.priority = priority;
  leaf.sibling_order = next_sibling_++;
  leaf.depth = at(parent).depth + length;
  children_[child_key(parent, kv::hash_front(leaf.key, pools_.page))] = node;
  ++at(parent).children;
  ++at(parent).card_children;
  evictable_ += length;
  raise_history(node);
  update_leaf(parent);
  update_leaf(node);
  return node;
}

void RadixTree::raise_history(NodeId node) {
  const std::int64_t depth = at(node).depth;
  while (node != kNoNode && at(node).deepest < depth) {
    at(node).deepest = depth;
    node = at(node).parent;
  }
}

void RadixTree::remove_leaf(NodeId node) {
  Node& leaf = at(node);
  set_leaf(leaves_, leaf.is_leaf, leaf.leaf_key, false, node);
  set_leaf(host_leaves_, leaf.is_host_leaf, leaf.host_leaf_key, false, node);
  if (leaf.duplicate) {
    duplicates_.erase(*leaf.duplicate);
    leaf.duplicate.reset();
  }
  children_.erase(child_key(leaf.parent, kv::hash_front(leaf.key, pools_.page)));
  --at(leaf.parent).children;
  at(leaf.parent).card_children -= leaf.on_card ? 1 : 0;
  update_leaf(leaf.parent);
  leaf.length = 0;
  leaf.key.clear();
  spare_.push_back(node);
  --live_;
}

bool RadixTree::evict_leaf(NodeId node) {
  if (!at(node).on_host && settings_.host && settings_.host->writes_back() && !write(node, true)) {
    return drop_with_host_children(node);
  }
  if (at(node).on_host) {
    demote(node);
  } else {
    delete_node(node);
  }
  return true;
}

void RadixTree::delete_node(NodeId node) {
  drop_window(node);
  drop_state(node);
  if (at(node).on_card) {
    evictable_ -= at(node).length;
    pools_.full.give(at(node).length);
  }
  if (at(node).on_host) {
    host_.give(at(node).length);
  }
  remove_leaf(node);
}

void RadixTree::evict(std::int64_t full_short, std::int64_t window_short) {
  const std::int64_t full_target = pools_.full.free() + full_short;
  const std::int64_t window_target = pools_.window.free() + window_short;
  const std::int64_t window_before = pools_.window.free();
  std::set<NodeId> staying;
  auto first = leaves_.begin();
  while (full_short > 0 && pools_.full.free() < full_target && first != leaves_.end()) {
    if (!evict_leaf(first->node)) {
      staying.insert(first->node);
    }
    first = std::find_if(leaves_.begin(), leaves_.end(),
                         [&](const LeafKey& leaf) { return staying.count(leaf.node) == 0; });
  }
  if (window_short > 0 && pools_.window.free() < window_target) {
    evict_window(window_short, pools_.window.free() - window_before, window_target);
  }
}

void RadixTree::evict_count(std::int64_t tokens) {
  while (tokens > 0 && !leaves_.empty()) {
    const NodeId node = leaves_.begin()->node;
    tokens -= at(node).length;
    delete_node(node);
  }
}

WindowMark RadixTree::lock(NodeId node) {
  for (NodeId up = node; up != kRoot; up = at(up).parent) {
    if (at(up).locks++ == 0 && at(up).on_card) {
      evictable_ -= at(up).length;
      locked_ += at(up).length;
    }
    if (settings_.host) {
      update_leaf(up);
    }
  }
  const WindowMark mark = settings_.window > 0 ? lock_window(node) : 0;
  lock_state(node);
  update_leaf(node);
  return mark;
}

void RadixTree::unlock(NodeId node, WindowMark mark) {
  if (settings_.window > 0) {
    unlock_window(node, mark);
  }
  unlock_state(node);
  for (NodeId up = node; up != kRoot; up = at(up).parent) {
    OOMCAST_CHECK(at(up).locks > 0, "node {} is unlocked once too often", up);
    if (--at(up).locks == 0 && at(up).on_card) {
      evictable_ += at(up).length;
      locked_ -= at(up).length;
    }
    if (settings_.host) {
      update_leaf(up);
    }
  }
  update_leaf(node);
}

void RadixTree::touch(NodeId node, std::int64_t time) {
  at(node).access = time;
  update_leaf(node);
}

void RadixTree::stamp_path(NodeId node) {
  const std::int64_t time = tick();
  for (; node != kRoot; node = at(node).parent) {
    touch(node, time);
  }
}

void RadixTree::add_to(Digest& digest) const {
  for (const Node& node : nodes_) {
    for (const std::int64_t number :
         {node.length, static_cast<std::int64_t>(node.parent), node.locks, node.access,
          node.creation, node.hits, node.priority, node.window_locks,
          static_cast<std::int64_t>(node.has_window), static_cast<std::int64_t>(node.newer),
          static_cast<std::int64_t>(node.has_state), node.state_locks,
          static_cast<std::int64_t>(node.on_card), static_cast<std::int64_t>(node.on_host),
          node.write, node.load, node.host_locks}) {
      digest.add_word(static_cast<std::uint64_t>(number));
    }
    for (const kv::TokenRun& run : node.key) {
      digest.add_word(run.segment);
      digest.add_word(static_cast<std::uint64_t>(run.offset));
    }
  }
  digest.add_word(static_cast<std::uint64_t>(clock_));
}

void RadixTree::check(std::int64_t locks) const {
  std::int64_t evictable = 0;
  std::int64_t locked = 0;
  std::int64_t leaves = 0;
  std::int64_t under_root = 0;
  std::vector<std::int64_t> children(nodes_.size(), 0);
  std::vector<std::int64_t> card_children(nodes_.size(), 0);
  for (NodeId id = 1; id < static_cast<NodeId>(nodes_.size()); ++id) {
    const Node& node = at(id);
    if (node.length == 0) {
      continue;
    }
    ++children[static_cast<std::size_t>(node.parent)];
    if (node.on_card) {
      (node.locks > 0 ? locked : evictable) += node.length;
      ++card_children[static_cast<std::size_t>(node.parent)];
    }
    under_root += node.parent == kRoot ? node.locks : 0;
    leaves += node.is_leaf ? 1 : 0;
    OOMCAST_CHECK(node.parent == kRoot || at(node.parent).locks >= node.locks,
                  "node {} has {} locks, its parent fewer", id, node.locks);
    OOMCAST_CHECK(node.length % pools_.page == 0, "node {} has {} tokens", id, node.length);
    OOMCAST_CHECK(!node.is_leaf || (leaves_.contains(node.leaf_key) && node.leaf_key == key_of(id)),
                  "leaf {} stands at a wrong place in the order of eviction", id);
  }
  for (NodeId id = 1; id < static_cast<NodeId>(nodes_.size()); ++id) {
    const Node& node = at(id);
    const std::int64_t found = children[static_cast<std::size_t>(id)];
    OOMCAST_CHECK(found == node.children || node.length == 0, "node {} has {} children, not {}", id,
                  found, node.children);
    const std::int64_t on_card = card_children[static_cast<std::size_t>(id)];
    OOMCAST_CHECK(on_card == node.card_children || node.length == 0,
                  "node {} has {} children on the card, not {}", id, on_card, node.card_children);
    const bool leaf = node.length > 0 && node.on_card && on_card == 0 && node.locks == 0 &&
                      node.window_locks == 0;
    OOMCAST_CHECK(leaf == node.is_leaf, "node {} is wrongly (no) leaf", id);
  }
  OOMCAST_CHECK(evictable == evictable_ && locked == locked_, "sizes {} + {}, counted {} + {}",
                evictable_, locked_, evictable, locked);
  OOMCAST_CHECK(leaves == static_cast<std::int64_t>(leaves_.size()), "{} leaves, {} in order",
                leaves, leaves_.size());
  OOMCAST_CHECK(under_root == locks + copy_locks_,
                "{} locks in the tree, requests hold {} and copies {}", under_root, locks,
                copy_locks_);
  if (settings_.state_grid > 0) {
    check_states();
  } else {
    check_window();
  }
  check_host();
}

}  // namespace oomcast::sglang
