// Orders over the prefix tree: who is evicted first by each policy (mem_cache/evict_policy.py), and
// whose prefill comes first under policy dfs-weight.
#include <algorithm>
#include <map>
#include <utility>

#include "sim/engines/sglang/radix_tree.hpp"

namespace oomcast::sglang {

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
  const bool leaf = node != kRoot && changed.on_card && changed.card_children == 0 &&
                    changed.locks == 0 && changed.window_locks == 0;
  set_leaf(leaves_, changed.is_leaf, changed.leaf_key, leaf, node);
  if (settings_.host) {
    const bool host_leaf = node != kRoot && !changed.on_card && changed.children == 0 &&
                           changed.locks == 0 && changed.host_locks == 0;
    set_leaf(host_leaves_, changed.is_host_leaf, changed.host_leaf_key, host_leaf, node);
  }
}

void RadixTree::set_leaf(std::set<LeafKey>& leaves, bool& listed, LeafKey& key, bool leaf,
                         NodeId node) {
  if (!leaf && !listed) {
    return;
  }
  if (!leaf) {
    leaves.erase(key);
    listed = false;
    return;
  }
  const LeafKey now = key_of(node);
  if (!listed) {
    leaves.insert(now);
  } else if (now != key) {
    auto entry = leaves.extract(key);
    entry.value() = now;
    leaves.insert(std::move(entry));
  }
  listed = true;
  key = now;
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

}  // namespace oomcast::sglang
