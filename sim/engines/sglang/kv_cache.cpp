#include "sim/engines/sglang/kv_cache.hpp"

#include <algorithm>
#include <utility>

namespace oomcast::sglang {
namespace {

TreeSettings tree_settings(const SchedulerConfig& config) {
  TreeSettings settings;
  settings.policy = config.radix_eviction_policy;
  settings.tlru_threshold = config.tlru_threshold.count();
  settings.tlru_next_prompt = config.tlru_next_prompt_estimate.count();
  settings.window = config.swa_pool_tokens ? config.sliding_window.count() : 0;
  settings.unified = config.rules.unified_tree;
  settings.host = config.host_tier;
  if (config.state_pool) {
    settings.state_grid = config.state_pool->grid(config.page_size).count();
  }
  return settings;
}

}  // namespace

KvCache::KvCache(const SchedulerConfig& config)
    : sharing_(!config.disable_radix_cache),
      unified_(config.rules.unified_tree),
      cuts_outputs_(config.rules.cuts_outputs),
      evicts_shortfall_(config.rules.evicts_shortfall),
      window_(config.sliding_window.count()),
      states_(config.state_pool),
      tracking_slots_(config.state_pool ? config.state_pool->tracking_slots() : 0),
      pools_{SlotPool{config.pool_tokens.count()},
             SlotPool{config.swa_pool_tokens.value_or(Tokens{}).count()}, config.page_size.count(),
             config.swa_pool_tokens.has_value(),
             SlotPool{config.state_pool ? config.state_pool->slots : 0}},
      tree_(tree_settings(config), pools_) {}

void KvCache::match(KvRow& row, const kv::TokenRuns& content, std::int64_t length) {
  if (!sharing_) {
    row.prefix = 0;
    return;
  }
  const RadixTree::Match found = tree_.match(content, length);
  row.node = found.node;
  row.prefix = found.length;
  row.branch = found.branch;
  row.end = found.end;
  row.host = found.host;
}

void KvCache::adopt_state(KvRow& row) {
  if (!sharing_ || !states_ || row.node == kRoot || row.has_state) {
    return;
  }
  if (pools_.state.free() == 0) {
    // What is to be copied must not be evicted for its copy.
    const WindowMark mark = tree_.lock(row.node);
    make_state_room(1);
    tree_.unlock(row.node, mark);
  }
  pools_.state.take(1);
  row.has_state = true;
}

void KvCache::return_state(KvRow& row) {
  if (row.has_state) {
    pools_.state.give(1);
    row.has_state = false;
  }
}

void KvCache::make_state_room(std::int64_t slots) {
  if (sharing_ && pools_.state.free() < slots) {
    tree_.evict_states(slots - pools_.state.free());
  }
}

std::int64_t KvCache::missing_states(const KvRow& row) const {
  if (!states_) {
    return 0;
  }
  return (row.has_state ? 0 : 1) + tracking_slots_ - row.tracking;
}

void KvCache::take_states(KvRow& row) {
  if (!states_) {
    return;
  }
  pools_.state.take(missing_states(row));
  row.has_state = true;
  row.tracking = tracking_slots_;
}

// A state comes out of the kernels at whole chunks from where the extend began. Of those the last
// one on the grid is kept, or the one where another sequence parts.
void KvCache::track_extend(KvRow& row, std::int64_t end) const {
  if (tracking_slots_ == 0) {
    return;
  }
  const std::int64_t grid = states_->grid(Tokens{pools_.page}).count();
  const std::int64_t tokens = end - row.prefix;
  if (tokens < grid) {
    return;
  }
  row.tracked = row.prefix + tokens / grid * grid;
  const std::int64_t kernel = states_->kernel_chunk.count();
  const bool at_last_chunk = row.prefix + tokens / kernel * kernel == *row.tracked;
  const std::int64_t before = at_last_chunk ? end : *row.tracked + 1;
  if (row.branch && *row.branch > row.prefix && *row.branch < before &&
      (*row.branch - row.prefix) % states_->chunk(Tokens{pools_.page}).count() == 0) {
    row.tracked = *row.branch;
  }
}

void KvCache::track_decodes(KvRow& row, std::int64_t begin, std::int64_t end) const {
  if (tracking_slots_ == 0) {
    return;
  }
  const std::int64_t interval = states_->track_grid(Tokens{pools_.page}).count();
  const std::int64_t last = end / interval * interval;
  if (last > begin) {
    row.tracked = last;
  }
}

bool KvCache::load_back(KvRow& row) {
  const std::int64_t tokens = std::exchange(row.host, 0);
  if (tokens == 0 || !tree_.load_back(row.end, tokens)) {
    return false;
  }
  row.node = row.end;
  row.prefix += tokens;
  row.shared = row.prefix;
  return true;
}

void KvCache::unlock(NodeId node, WindowMark mark) {
  if (sharing_) {
    tree_.unlock(node, mark);
  }
}

void KvCache::hold(KvRow& row) {
  if (sharing_) {
    row.locks = true;
    row.locked = row.node;
    row.mark = tree_.lock(row.node);
  }
}

void KvCache::unhold(KvRow& row) {
  if (row.locks) {
    row.locks = false;
    tree_.unlock(row.locked, row.mark);
  }
}

void KvCache::make_room(std::int64_t tokens) {
  if (!sharing_) {
    return;
  }
  const std::int64_t full_short = std::max<std::int64_t>(tokens - pools_.full.free(), 0);
  const std::int64_t window_short =
      pools_.windowed ? std::max<std::int64_t>(tokens - pools_.window.free(), 0) : 0;
  if (full_short == 0 && window_short == 0) {
    return;
  }
  if (evicts_shortfall_) {
    tree_.evict(full_short, window_short);
  } else {
    tree_.evict_count(tokens);
  }
}

bool KvCache::take(std::int64_t slots) {
  if (slots > pools_.free()) {
    return false;
  }
  pools_.take(slots);
  return true;
}

void KvCache::slide(KvRow& row, std::int64_t at) {
  if (!pools_.windowed || !row.held || at - window_ < row.gone + 1) {
    return;
  }
  row.gone = std::max(row.gone, row.shared);
  // In the tree a key that ends at the page below `at` keeps a full window.
  const std::int64_t kept =
      sharing_ ? align_up(std::max(window_, pools_.page), pools_.page) : window_;
  const std::int64_t gone = pools_.floor(std::max(row.gone, at - kept));
  if (gone > row.gone) {
    pools_.window.give(gone - row.gone);
    row.gone = gone;
  }
}

void KvCache::publish(KvRow& row, const Published& what) {
  if (!sharing_) {
    return;
  }
  if (!unified_) {
    publish_old(row, what);
    return;
  }
  if (states_) {
    publish_state(row, what);
    return;
  }
  const bool to_branch = row.branch && *row.branch > row.shared && *row.branch <= what.length;
  const std::int64_t length = to_branch ? *row.branch : what.length;
  if (!what.finished) {
    slide(row, length - 1);
  }
  if (length <= 0) {
    return;
  }
  const std::int64_t end = pools_.floor(length);
  const RadixTree::Inserted inserted =
      tree_.insert(*what.content, {end, row.shared, row.published, row.gone, what.priority});
  row.published = std::max(row.published, end);
  // Outputs are cut from the prompt, so that they can be evicted first.
  const std::int64_t prompt = pools_.floor(what.prompt);
  if (cuts_outputs_ && !pools_.windowed && prompt > 0 && prompt < end) {
    tree_.insert(*what.content, {prompt, prompt, prompt, 0, what.priority + 1});
  }
  unhold(row);
  row.node = inserted.node;
  hold(row);
  row.shared = end;
  if (to_branch) {
    row.branch.reset();
    if (!what.finished) {
      slide(row, what.computed - 1);
    }
  }
}

// The tree gets KV up to a point and the state of that point. A running request keeps as many slots
// as it had: it copies its state, or takes another slot for the tracked one it gives. A finished
// one gives the slot itself.
void KvCache::publish_state(KvRow& row, const Published& what) {
  std::int64_t length = what.length;
  if (tracking_slots_ > 0) {
    // What was decoded beyond the key has no name.
    length = row.tracked.value_or(0) <= what.length ? row.tracked.value_or(0) : 0;
    row.tracked.reset();
  }
  if (length == 0) {
    return;
  }
  if (!what.finished) {
    make_state_room(1);
    pools_.state.take(1);
  }
  const std::int64_t end = pools_.floor(length);
  const RadixTree::Inserted inserted = tree_.insert(
      *what.content,
      {.length = end, .shared = row.shared, .published = row.published, .priority = what.priority});
  row.published = std::max(row.published, end);
  if (!what.finished && !inserted.took_state) {
    pools_.state.give(1);
  } else if (what.finished && inserted.took_state) {
    row.tracking -= tracking_slots_ > 0 ? 1 : 0;
    row.has_state = tracking_slots_ > 0;
  }
  unhold(row);
  row.node = inserted.node;
  hold(row);
  row.shared = end;
}

void KvCache::publish_old(KvRow& row, const Published& what) {
  const std::int64_t end = pools_.floor(what.length);
  const RadixTree::Inserted inserted =
      tree_.insert(*what.content, {.length = end, .shared = row.shared, .priority = what.priority});
  give_row(row, row.shared, inserted.existing);
  const RadixTree::Match found = tree_.match(*what.content, end);
  unhold(row);
  row.node = found.node;
  hold(row);
  row.shared = end;
}

void KvCache::give_row(const KvRow& row, std::int64_t begin, std::int64_t end) {
  if (begin >= end) {
    return;
  }
  pools_.full.give(pools_.slots(begin, end));
  const std::int64_t window_begin = std::max(begin, row.gone);
  if (pools_.windowed && window_begin < end) {
    pools_.window.give(pools_.slots(window_begin, end));
  }
}

void KvCache::release(KvRow& row, const Published& what, bool publish, std::int64_t owned) {
  if (!unified_) {
    release_old(row, what, publish);
  } else {
    if (publish) {
      this->publish(row, what);
    }
    give_row(row, row.shared, owned);
    unhold(row);
    give_row(row, align_up(owned, pools_.page), row.filled);
  }
  pools_.state.give((row.has_state ? 1 : 0) + row.tracking);
  row.has_state = false;
  row.tracking = 0;
  row.tracked.reset();
  row.filled = 0;
  row.gone = 0;
  row.held = false;
}

void KvCache::release_old(KvRow& row, const Published& what, bool publish) {
  if (!sharing_ || !publish) {
    give_row(row, row.shared, row.filled);
  } else {
    const std::int64_t end = pools_.floor(what.length);
    const RadixTree::Inserted inserted = tree_.insert(
        *what.content, {.length = end, .shared = row.shared, .priority = what.priority});
    give_row(row, row.shared, inserted.existing);
    give_row(row, end, row.filled);
  }
  unhold(row);
}

}  // namespace oomcast::sglang
