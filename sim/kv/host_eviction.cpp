#include "sim/kv/host_eviction.hpp"

#include <algorithm>

#include "sim/core/error.hpp"

namespace oomcast::kv {

std::unique_ptr<HostEviction> HostEviction::make(HostTier::Policy policy, std::int64_t capacity) {
  if (policy == HostTier::Policy::kArc) {
    return std::make_unique<ArcEviction>(capacity);
  }
  return std::make_unique<LruEviction>();
}

void LruEviction::move(BlockKey key, Place& place, Rank rank) {
  if (place.evictable) {
    evictable_.erase({place.rank, key});
    evictable_.insert({rank, key});
  }
  place.rank = rank;
}

void LruEviction::insert(const HostTier::Item& item, std::uint64_t rank) {
  places_[item.key] = Place{{rank, -item.end, item.group}, false};
}

void LruEviction::access(const HostTier::Item& item, std::uint64_t rank) {
  Place& place = places_[item.key];
  const auto& [old_rank, old_end, group] = place.rank;
  if (std::pair(old_rank, old_end) < std::pair(rank, -item.end)) {
    move(item.key, place, {rank, -item.end, item.group});
  }
}

void LruEviction::missed(const std::vector<HostTier::Item>& /*items*/) {}

void LruEviction::finish(const std::vector<Ended>& chunks, std::uint64_t& next_rank) {
  for (const Ended& chunk : chunks) {
    if (const auto found = places_.find(chunk.key); found != places_.end()) {
      move(chunk.key, found.value(), {++next_rank, 0, 0});
    }
  }
}

void LruEviction::set_evictable(BlockKey key, bool evictable) {
  Place& place = places_[key];
  place.evictable = evictable;
  if (evictable) {
    evictable_.insert({place.rank, key});
  } else {
    evictable_.erase({place.rank, key});
  }
}

bool LruEviction::take(std::int64_t count, const tsl::robin_set<BlockKey>& keep,
                       std::vector<BlockKey>& taken) {
  taken.clear();
  for (auto entry = evictable_.begin();
       entry != evictable_.end() && static_cast<std::int64_t>(taken.size()) < count; ++entry) {
    if (!keep.contains(entry->second)) {
      taken.push_back(entry->second);
    }
  }
  if (static_cast<std::int64_t>(taken.size()) < count) {
    return false;
  }
  for (const BlockKey key : taken) {
    evictable_.erase({places_[key].rank, key});
    places_.erase(key);
  }
  return true;
}

// To the most recent end of a list.
void ArcEviction::move(Place& place, List to) {
  keys(to).splice(keys(to).end(), keys(place.list), place.position);
  place.list = to;
}

void ArcEviction::insert(const HostTier::Item& item, std::uint64_t /*rank*/) {
  const auto [found, fresh] = places_.try_emplace(item.key);
  if (!fresh) {
    keys(found.value().list).erase(found.value().position);
  }
  found.value() = Place{kT1, false, keys(kT1).insert(keys(kT1).end(), item.key)};
}

void ArcEviction::access(const HostTier::Item& /*item*/, std::uint64_t /*rank*/) {}

// A chunk that was let go too early: its list should have been longer.
void ArcEviction::missed(const std::vector<HostTier::Item>& items) {
  for (auto item = items.rbegin(); item != items.rend(); ++item) {
    const auto found = places_.find(item->key);
    if (found == places_.end() || (found->second.list != kB1 && found->second.list != kB2)) {
      continue;
    }
    const bool recent = found->second.list == kB1;
    const auto own = static_cast<double>(keys(recent ? kB1 : kB2).size());
    const auto other = static_cast<double>(keys(recent ? kB2 : kB1).size());
    const double step = std::max(1.0, other / own);
    target_ = recent ? std::min(target_ + step, static_cast<double>(capacity_))
                     : std::max(target_ - step, 0.0);
    move(found.value(), found->second.list);
  }
}

void ArcEviction::finish(const std::vector<Ended>& chunks, std::uint64_t& /*next_rank*/) {
  for (const Ended& chunk : chunks) {
    const auto found = places_.find(chunk.key);
    if (found == places_.end() || found->second.list == kB1 || found->second.list == kB2) {
      continue;
    }
    if (chunk.reused || chunk.only_written) {
      move(found.value(), chunk.reused ? kT2 : found->second.list);
    }
  }
}

void ArcEviction::set_evictable(BlockKey key, bool evictable) {
  places_[key].evictable = evictable;
}

bool ArcEviction::take(std::int64_t count, const tsl::robin_set<BlockKey>& keep,
                       std::vector<BlockKey>& taken) {
  taken.clear();
  auto recent = keys(kT1).begin();
  auto frequent = keys(kT2).begin();
  const auto next = [&](List list, std::list<BlockKey>::iterator& place) {
    for (; place != keys(list).end(); ++place) {
      if (places_[*place].evictable && !keep.contains(*place)) {
        taken.push_back(*place++);
        return true;
      }
    }
    return false;
  };
  auto left = static_cast<std::int64_t>(keys(kT1).size());
  while (static_cast<std::int64_t>(taken.size()) < count) {
    if (left >= static_cast<std::int64_t>(target_) && next(kT1, recent)) {
      --left;
    } else if (!next(kT2, frequent)) {
      if (!next(kT1, recent)) {
        return false;
      }
      --left;
    }
  }
  for (const BlockKey key : taken) {
    const auto found = places_.find(key);
    found.value().evictable = false;
    move(found.value(), found->second.list == kT1 ? kB1 : kB2);
  }
  for (const List ghosts : {kB1, kB2}) {
    while (static_cast<std::int64_t>(keys(ghosts).size()) > capacity_) {
      places_.erase(keys(ghosts).front());
      keys(ghosts).pop_front();
    }
  }
  return true;
}

}  // namespace oomcast::kv
