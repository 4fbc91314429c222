#include "sim/engines/sglang/radix_tree.hpp"

#include <algorithm>
#include <map>

#include "sim/core/error.hpp"

namespace oomcast::sglang {

RadixTree::RadixTree(const TreeSettings& settings, SlotPools& pools)
    : settings_(settings), pools_(pools), nodes_(1) {}

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
    if (settings_.window == 0 || (at(node).has_window && window_run >= settings_.window)) {
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
  if (settings_.unified) {
    stamp_path(best.node);
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
    if (settings_.unified) {
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
  if (start < insertion.length) {
    node = add_leaf(node, content, place, insertion.length - start, insertion.priority);
    if (settings_.window > 0) {
      publish_leaf_window(node, start, insertion);
    }
  }
  result.node = node;
  if (settings_.window > 0) {
    refresh_window(node);
  }
  if (settings_.unified && start < insertion.length) {
    count_hit(node, insertion.length, insertion);
  }
  return result;
}

void RadixTree::count_hit(NodeId node, std::int64_t end, const Insertion& insertion) {
  if (end > insertion.published) {
    ++at(node).hits;
    update_leaf(node);
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
  if (leaf.is_leaf) {
    leaves_.erase(leaf.leaf_key);
    leaf.is_leaf = false;
  }
  children_.erase(child_key(leaf.parent, kv::hash_front(leaf.key, pools_.page)));
  --at(leaf.parent).children;
  update_leaf(leaf.parent);
  leaf.length = 0;
  leaf.key.clear();
  spare_.push_back(node);
  --live_;
}

void RadixTree::evict_leaf(NodeId node) {
  drop_window(node);
  evictable_ -= at(node).length;
  pools_.full.give(at(node).length);
  remove_leaf(node);
}

void RadixTree::evict(std::int64_t full_short, std::int64_t window_short) {
  const std::int64_t full_target = pools_.full.free() + full_short;
  const std::int64_t window_target = pools_.window.free() + window_short;
  const std::int64_t window_before = pools_.window.free();
  while (full_short > 0 && pools_.full.free() < full_target && !leaves_.empty()) {
    evict_leaf(leaves_.begin()->node);
  }
  if (window_short > 0 && pools_.window.free() < window_target) {
    evict_window(window_short, pools_.window.free() - window_before, window_target);
  }
}

void RadixTree::evict_count(std::int64_t tokens) {
  while (tokens > 0 && !leaves_.empty()) {
    const NodeId node = leaves_.begin()->node;
    tokens -= at(node).length;
    evict_leaf(node);
  }
}

WindowMark RadixTree::lock(NodeId node) {
  for (NodeId up = node; up != kRoot; up = at(up).parent) {
    if (at(up).locks++ == 0) {
      evictable_ -= at(up).length;
      locked_ += at(up).length;
    }
  }
  const WindowMark mark = settings_.window > 0 ? lock_window(node) : 0;
  update_leaf(node);
  return mark;
}

void RadixTree::unlock(NodeId node, WindowMark mark) {
  if (settings_.window > 0) {
    unlock_window(node, mark);
  }
  for (NodeId up = node; up != kRoot; up = at(up).parent) {
    OOMCAST_CHECK(at(up).locks > 0, "node {} is unlocked once too often", up);
    if (--at(up).locks == 0) {
      evictable_ += at(up).length;
      locked_ -= at(up).length;
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

RadixTree::LeafKey RadixTree::key_of(NodeId node) const {
  const Node& leaf = at(node);
  LeafKey key{0, leaf.access, leaf.access, node};
  switch (settings_.policy) {
    case EvictionPolicy::kLru:
      break;
    case EvictionPolicy::kLfu:
      key.rank = leaf.hits;
      break;
    case EvictionPolicy::kSlru:
      key.rank = leaf.hits >= 2 ? 1 : 0;
      break;
    case EvictionPolicy::kPriority:
      key.rank = leaf.priority;
      break;
    case EvictionPolicy::kFifo:
      key.time = leaf.creation;
      break;
    case EvictionPolicy::kMru:
      key.time = -leaf.access;
      break;
    case EvictionPolicy::kFilo:
      key.time = -leaf.creation;
      break;
    case EvictionPolicy::kTlru: {
      const std::int64_t budget = std::max<std::int64_t>(
          leaf.deepest + settings_.tlru_next_prompt - settings_.tlru_threshold, 0);
      key.rank = leaf.depth - leaf.length >= budget ? -1 : 0;
      break;
    }
  }
  return key;
}

// Puts the node into the leaves, takes it out, or moves it to where its key now belongs.
void RadixTree::update_leaf(NodeId node) {
  Node& changed = at(node);
  const bool leaf =
      node != kRoot && changed.children == 0 && changed.locks == 0 && changed.window_locks == 0;
  if (!leaf && !changed.is_leaf) {
    return;
  }
  const LeafKey key = key_of(node);
  if (changed.is_leaf) {
    if (leaf && key == changed.leaf_key) {
      return;
    }
    auto entry = leaves_.extract(changed.leaf_key);
    changed.is_leaf = leaf;
    if (leaf) {
      entry.value() = key;
      leaves_.insert(std::move(entry));
      changed.leaf_key = key;
    }
    return;
  }
  changed.is_leaf = true;
  changed.leaf_key = key;
  leaves_.insert(key);
}

std::vector<std::size_t> RadixTree::weighted_order(std::span<const NodeId> ends) const {
  struct Weight {
    std::int64_t ends = 0;
    std::vector<std::size_t> own;
    std::vector<NodeId> children;  // that lead to ends
  };
  std::map<NodeId, Weight> weights;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    weights[ends[i]].own.push_back(i);
    for (NodeId node = ends[i];; node = at(node).parent) {
      const bool first = weights[node].ends++ == 0;
      if (node == kRoot) {
        break;
      }
      if (first) {
        weights[at(node).parent].children.push_back(node);
      }
    }
  }
  for (auto& [node, weight] : weights) {
    std::sort(weight.children.begin(), weight.children.end(), [&](NodeId left, NodeId right) {
      const std::int64_t a = weights.at(left).ends;
      const std::int64_t b = weights.at(right).ends;
      return a != b ? a > b : at(left).sibling_order < at(right).sibling_order;
    });
  }
  std::vector<std::size_t> order;
  std::vector<std::pair<NodeId, bool>> stack{{kRoot, false}};
  while (!stack.empty() && !ends.empty()) {
    const auto [node, children_done] = stack.back();
    stack.pop_back();
    const Weight& weight = weights.at(node);
    if (children_done) {
      order.insert(order.end(), weight.own.begin(), weight.own.end());
      continue;
    }
    stack.emplace_back(node, true);
    for (auto child = weight.children.rbegin(); child != weight.children.rend(); ++child) {
      stack.emplace_back(*child, false);
    }
  }
  return order;
}

void RadixTree::add_to(Digest& digest) const {
  for (const Node& node : nodes_) {
    for (const std::int64_t number :
         {node.length, static_cast<std::int64_t>(node.parent), node.locks, node.access,
          node.creation, node.hits, node.priority, node.window_locks,
          static_cast<std::int64_t>(node.has_window), static_cast<std::int64_t>(node.newer)}) {
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
  for (NodeId id = 1; id < static_cast<NodeId>(nodes_.size()); ++id) {
    const Node& node = at(id);
    if (node.length == 0) {
      continue;
    }
    ++children[static_cast<std::size_t>(node.parent)];
    (node.locks > 0 ? locked : evictable) += node.length;
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
    const bool leaf = node.length > 0 && found == 0 && node.locks == 0 && node.window_locks == 0;
    OOMCAST_CHECK(leaf == node.is_leaf, "node {} is wrongly (no) leaf", id);
  }
  OOMCAST_CHECK(evictable == evictable_ && locked == locked_, "sizes {} + {}, counted {} + {}",
                evictable_, locked_, evictable, locked);
  OOMCAST_CHECK(leaves == static_cast<std::int64_t>(leaves_.size()), "{} leaves, {} in order",
                leaves, leaves_.size());
  OOMCAST_CHECK(under_root == locks, "{} locks in the tree, requests hold {}", under_root, locks);
  check_window();
}

}  // namespace oomcast::sglang
