#include "sim/kv/host_tier.hpp"

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/kv/host_eviction.hpp"

namespace oomcast::kv {
namespace {

constexpr std::size_t kMaxOffersTracked = 64'000;  // max_tracker_size

}  // namespace

HostTier::HostTier(std::int64_t capacity, Policy policy, std::int64_t store_threshold)
    : capacity_(capacity),
      store_threshold_(store_threshold),
      eviction_(HostEviction::make(policy, capacity)) {}
HostTier::~HostTier() = default;

std::int64_t HostTier::used() const {
  return numbered_ - static_cast<std::int64_t>(free_numbers_.size());
}

HostTier::Presence HostTier::find(BlockKey key) const {
  const auto found = chunks_.find(key);
  if (found == chunks_.end()) {
    return Presence::kAbsent;
  }
  return found->second.readers == kWriting ? Presence::kWriting : Presence::kReady;
}

void HostTier::record(Access& access, const Item& item, bool reused) {
  if (access.rank == 0) {
    access.rank = ++next_rank_;
  }
  Access::Marks& marks = access.marks[item.key];
  if (!marks.seen) {
    marks.seen = true;
    access.seen.push_back(item);
  }
  marks.reused |= reused && !marks.inserted;
  if (chunks_.contains(item.key)) {
    eviction_->access(item, access.rank);
  }
}

void HostTier::pin(Access& access, const std::vector<Item>& items,
                   std::vector<std::int64_t>& numbers) {
  for (const Item& item : items) {
    const auto found = chunks_.find(item.key);
    OOMCAST_CHECK(found != chunks_.end() && found->second.readers >= 0,
                  "a chunk that is not in the host tier is read");
    if (found.value().readers++ == 0) {
      eviction_->set_evictable(item.key, false);
      --evictable_;
    }
    numbers.push_back(found->second.number);
    record(access, item, true);
  }
}

void HostTier::unpin(const std::vector<BlockKey>& keys) {
  for (const BlockKey key : keys) {
    const auto found = chunks_.find(key);
    OOMCAST_CHECK(found != chunks_.end() && found->second.readers > 0,
                  "a chunk that nobody reads is unpinned");
    if (--found.value().readers == 0) {
      eviction_->set_evictable(key, true);
      ++evictable_;
    }
  }
}

// An offer may push out others' counts, not those it renews itself.
void HostTier::count_offers(const std::vector<Item>& items) {
  std::size_t renewed = 0;
  for (const Item& item : items) {
    if (const auto found = offers_.find(item.key); found != offers_.end()) {
      ++found.value().count;
      offer_order_.splice(offer_order_.end(), offer_order_, found->second.place);
      ++renewed;
    }
  }
  std::size_t others = offers_.size() - std::min(renewed, offers_.size());
  for (const Item& item : items) {
    if (offers_.contains(item.key)) {
      continue;
    }
    if (offers_.size() >= kMaxOffersTracked) {
      if (others == 0) {
        continue;
      }
      offers_.erase(offer_order_.front());
      offer_order_.pop_front();
      --others;
    }
    offers_[item.key] = {1, offer_order_.insert(offer_order_.end(), item.key)};
  }
}

bool HostTier::offered_often(BlockKey key) const {
  const auto found = offers_.find(key);
  return found != offers_.end() && found->second.count >= store_threshold_;
}

bool HostTier::offer(Access& access, const std::vector<Item>& items, std::vector<Item>& accepted,
                     std::vector<std::int64_t>& numbers) {
  accepted.clear();
  const bool counted = store_threshold_ >= 2;
  if (counted) {
    count_offers(items);
  }
  std::vector<Item> missed;
  for (const Item& item : items) {
    if (find(item.key) == Presence::kAbsent && (!counted || offered_often(item.key))) {
      accepted.push_back(item);
      bool& known = access.marks[item.key].missed;
      if (!known) {
        missed.push_back(item);
      }
      known = true;
    }
  }
  eviction_->missed(missed);
  std::size_t next = 0;
  for (const Item& item : items) {
    const bool wanted = next < accepted.size() && accepted[next].key == item.key;
    next += wanted ? 1 : 0;
    const bool ready = find(item.key) == Presence::kReady;
    if (wanted || ready) {
      record(access, item, ready);
    }
  }
  const std::int64_t room = capacity_ - used();
  const auto missing = static_cast<std::int64_t>(accepted.size()) - room;
  if (missing > 0 && !evict(missing, items)) {
    accepted.clear();
    return false;
  }
  for (const Item& item : accepted) {
    const std::int64_t number = new_number();
    numbers.push_back(number);
    chunks_[item.key] = Chunk{number, kWriting};
    access.marks[item.key].inserted = true;
    eviction_->insert(item, access.rank);
  }
  writing_ += static_cast<std::int64_t>(accepted.size());
  return true;
}

bool HostTier::evict(std::int64_t count, const std::vector<Item>& keep) {
  if (count > evictable_) {
    return false;
  }
  tsl::robin_set<BlockKey> kept;
  for (const Item& item : keep) {
    kept.insert(item.key);
  }
  std::vector<BlockKey> taken;
  if (!eviction_->take(count, kept, taken)) {
    return false;
  }
  for (const BlockKey key : taken) {
    free_numbers_.push_back(chunks_[key].number);
    chunks_.erase(key);
  }
  evictable_ -= count;
  return true;
}

std::int64_t HostTier::new_number() {
  if (numbered_ < capacity_) {
    return numbered_++;
  }
  const std::int64_t number = free_numbers_.back();
  free_numbers_.pop_back();
  return number;
}

void HostTier::written(const std::vector<BlockKey>& keys) {
  for (const BlockKey key : keys) {
    const auto found = chunks_.find(key);
    OOMCAST_CHECK(found != chunks_.end() && found->second.readers == kWriting,
                  "a chunk that nobody writes is written");
    found.value().readers = 0;
    --writing_;
    ++evictable_;
    eviction_->set_evictable(key, true);
  }
}

void HostTier::finish(Access& access) {
  std::stable_sort(access.seen.begin(), access.seen.end(), [](const Item& left, const Item& right) {
    return std::pair(left.end, left.group) < std::pair(right.end, right.group);
  });
  std::vector<HostEviction::Ended> chunks;
  for (auto item = access.seen.rbegin(); item != access.seen.rend(); ++item) {
    const Access::Marks& marks = access.marks[item->key];
    chunks.push_back({item->key, marks.reused, marks.inserted && !marks.reused});
  }
  eviction_->finish(chunks, next_rank_);
}

}  // namespace oomcast::kv
