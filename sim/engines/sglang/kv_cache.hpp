// KV of requests: slots a request holds, slots the prefix tree holds, and how they pass from one to
// the other (mem_cache/common.py, unified_radix_cache.py; radix_cache.py and chunk_cache.py
// before).
#pragma once

#include <cstdint>
#include <optional>

#include "sim/engines/sglang/radix_tree.hpp"
#include "sim/engines/sglang/scheduler_config.hpp"
#include "sim/engines/sglang/slot_pools.hpp"
#include "sim/kv/token_runs.hpp"

namespace oomcast::sglang {

// What one request holds. Its own slots are those of [shared, filled).
struct KvRow {
  bool held = false;                   // has a row of the request table
  std::int64_t filled = 0;             // slots are allocated up to here
  std::int64_t shared = 0;             // the tree owns the slots below; in whole pages
  std::int64_t published = 0;          // inserted so much before
  std::int64_t gone = 0;               // own window slots below are given back
  std::int64_t prefix = 0;             // already in place when the next extend begins
  NodeId node = kRoot;                 // where the latest lookup or insert ended
  NodeId end = kRoot;                  // where the latest lookup ended on the host
  std::int64_t host = 0;               // tokens from node to end, on the host alone
  std::optional<std::int64_t> branch;  // trees of windows or states, see RadixTree::Match
  bool locks = false;
  NodeId locked = kRoot;
  WindowMark mark = 0;

  // Recurrent layers: a slot for its state, slots that states are tracked in, and the position of
  // the state tracked last, if that is not the tree's yet.
  bool has_state = false;
  std::int64_t tracking = 0;
  std::optional<std::int64_t> tracked;
};

// What a publication needs to know of the request.
struct Published {
  const kv::TokenRuns* content = nullptr;
  std::int64_t length = 0;    // tokens to publish
  std::int64_t computed = 0;  // end of the latest extend
  std::int64_t prompt = 0;
  std::int64_t priority = 0;
  bool finished = false;
};

class KvCache {
 public:
  explicit KvCache(const SchedulerConfig& config);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  [[nodiscard]] bool sharing() const { return sharing_; }
  [[nodiscard]] bool windowed() const { return pools_.windowed; }
  [[nodiscard]] std::int64_t window() const { return window_; }
  [[nodiscard]] std::int64_t page() const { return pools_.page; }
  [[nodiscard]] const SlotPools& pools() const { return pools_; }
  [[nodiscard]] const RadixTree& tree() const { return tree_; }
  // Slots that are free or can be made free.
  [[nodiscard]] std::int64_t reach() const { return pools_.full.free() + tree_.evictable(); }
  [[nodiscard]] std::int64_t window_reach() const {
    return pools_.window.free() + tree_.window_evictable();
  }

  // Looks the first `length` tokens up: sets prefix, node, branch, end and host. Nothing without
  // sharing.
  void match(KvRow& row, const kv::TokenRuns& content, std::int64_t length);
  WindowMark lock(NodeId node) { return sharing_ ? tree_.lock(node) : 0; }
  void unlock(NodeId node, WindowMark mark);
  void hold(KvRow& row);  // locks row.node for the request

  // Recurrent layers. The state of a hit is copied to a slot of the request's own (copy on write);
  // return_state() gives that back where the request is not admitted after all.
  void adopt_state(KvRow& row);
  void return_state(KvRow& row);
  // Slots that a request with a row has and this one lacks.
  [[nodiscard]] std::int64_t missing_states(const KvRow& row) const;
  // Evicts states until so many slots are free, where it can.
  void make_state_room(std::int64_t slots);
  void take_states(KvRow& row);
  // Notes the state that an extend from row.prefix to `end` keeps, or decodes of (begin, end].
  void track_extend(KvRow& row, std::int64_t end) const;
  void track_decodes(KvRow& row, std::int64_t begin, std::int64_t end) const;

  // Brings the part of the row's hit that is on the host to the card, where it can; the row has
  // that part no longer, as a hit on the card or not at all. Whether it did.
  bool load_back(KvRow& row);
  [[nodiscard]] CopyBatch take_writes() { return tree_.take_writes(); }
  [[nodiscard]] std::int64_t take_awaited() { return tree_.take_awaited(); }
  [[nodiscard]] CopyBatch take_loads() { return tree_.take_loads(); }
  void copy_over(const NodeCopy& copy) { tree_.copy_over(copy); }

  // Evicts until `tokens` slots are free, where it can.
  void make_room(std::int64_t tokens);
  [[nodiscard]] bool has_room(std::int64_t tokens) {
    make_room(tokens);
    return pools_.free() >= tokens;
  }
  // Slots of `tokens` tokens in whole pages; whether they were there.
  [[nodiscard]] bool take(std::int64_t slots);

  // The request's window moves on to where it computes position `at`: window slots it can no longer
  // see go back.
  void slide(KvRow& row, std::int64_t at);
  // Publishes what a running request has computed.
  void publish(KvRow& row, const Published& what);
  // Gives everything up, with `publish` after inserting what can be keyed. Slots from `owned` on
  // hold nothing of use.
  void release(KvRow& row, const Published& what, bool publish, std::int64_t owned);

 private:
  void unhold(KvRow& row);
  void give_row(const KvRow& row, std::int64_t begin, std::int64_t end);
  void publish_state(KvRow& row, const Published& what);
  void publish_old(KvRow& row, const Published& what);
  void release_old(KvRow& row, const Published& what, bool publish);

  bool sharing_;
  bool unified_;  // rules of the unified tree
  bool cuts_outputs_;
  bool evicts_shortfall_;
  std::int64_t window_;
  std::optional<StatePoolSettings> states_;
  std::int64_t tracking_slots_;  // of each request; 0: states are published as they are
  SlotPools pools_;
  RadixTree tree_;
};

}  // namespace oomcast::sglang
