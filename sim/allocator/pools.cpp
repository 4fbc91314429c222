// Private pools: CUDA graphs and torch.cuda.MemPool (runtime.md 1.8; allocator.md 2, 14, 17).
#include <algorithm>

#include "sim/allocator/caching_allocator.hpp"
#include "sim/core/error.hpp"

namespace oomcast::allocator {
namespace {

void set_member(std::vector<PoolId>& ids, PoolId id, bool is_member) {
  const auto place = std::lower_bound(ids.begin(), ids.end(), id);
  const bool was_member = place != ids.end() && *place == id;
  if (is_member && !was_member) {
    ids.insert(place, id);
  } else if (!is_member && was_member) {
    ids.erase(place);
  }
}

}  // namespace

std::optional<std::uint32_t> CachingAllocator::find_pool(PoolId id) const {
  const auto place =
      std::lower_bound(private_pools_.begin(), private_pools_.end(), id,
                       [](const auto& each, PoolId wanted) { return each.first < wanted; });
  if (place == private_pools_.end() || place->first != id) {
    return std::nullopt;
  }
  return place->second;
}

bool CachingAllocator::has_uses(PoolId id) const {
  const std::optional<std::uint32_t> pool = find_pool(id);
  return pool && pools_[*pool].uses > 0;
}

bool CachingAllocator::is_routed(PoolId id) const {
  return std::any_of(routes_.begin(), routes_.end(),
                     [&](const Route& route) { return route.pool == id; });
}

std::uint32_t CachingAllocator::make_or_use_pool(PoolId id) {
  OOMCAST_CHECK(id != PoolId::kDefault, "the default pool is not a private one");
  if (const std::optional<std::uint32_t> pool = find_pool(id)) {
    OOMCAST_CHECK(pools_[*pool].uses > 0, "a pool that has lost its last use is used again");
    pools_[*pool].uses += 1;
    return *pool;
  }
  std::uint32_t pool = static_cast<std::uint32_t>(pools_.size());
  if (spare_pools_.empty()) {
    pools_.emplace_back();
  } else {
    pool = spare_pools_.back();
    spare_pools_.pop_back();
  }
  pools_[pool].id = id;
  pools_[pool].uses = 1;
  pools_[pool].reserved = 0;
  pools_[pool].no_split = std::binary_search(no_split_.begin(), no_split_.end(), id);
  private_pools_.insert(
      std::lower_bound(private_pools_.begin(), private_pools_.end(), std::pair{id, pool}),
      {id, pool});
  return pool;
}

// Nothing of the pool is mapped. A reserved range that never was stays with the driver, as in
// PyTorch.
void CachingAllocator::delete_pool(std::uint32_t pool) {
  for (auto& half : pools_[pool].lists) {
    for (const auto& [stream, list] : half) {
      for (const std::uint32_t block : lists_[list].unmapped) {
        drop_segment(blocks_[block].segment);
      }
      lists_[list].unmapped.clear();
      lists_[list].pool = kNone;
      spare_lists_.push_back(list);
    }
    half.clear();
  }
  std::erase_if(private_pools_, [&](const auto& each) { return each.second == pool; });
  spare_pools_.push_back(pool);
}

void CachingAllocator::begin_pool(PoolId id, std::optional<StreamId> stream) {
  OOMCAST_CHECK(!is_routed(id), "allocations already go to this pool");
  make_or_use_pool(id);
  routes_.push_back({id, stream});
}

void CachingAllocator::end_pool(PoolId id) {
  const auto route = std::find_if(routes_.begin(), routes_.end(),
                                  [&](const Route& each) { return each.pool == id; });
  OOMCAST_CHECK(route != routes_.end(), "no allocations go to this pool");
  routes_.erase(route);
}

void CachingAllocator::create_pool(PoolId id) { make_or_use_pool(id); }

void CachingAllocator::release_pool(PoolId id) {
  OOMCAST_CHECK(has_uses(id), "a pool without uses is released");
  pools_[*find_pool(id)].uses -= 1;
}

void CachingAllocator::set_use_on_oom(PoolId id, bool on) { set_member(use_on_oom_, id, on); }

void CachingAllocator::set_no_split(PoolId id, bool on) {
  set_member(no_split_, id, on);
  if (const std::optional<std::uint32_t> pool = find_pool(id)) {
    pools_[*pool].no_split = on;
  }
}

// The innermost route that takes the stream decides.
std::uint32_t CachingAllocator::target_pool(StreamId stream) const {
  for (auto route = routes_.rbegin(); route != routes_.rend(); ++route) {
    if (!route->stream || *route->stream == stream) {
      return *find_pool(route->pool);
    }
  }
  return 0;
}

}  // namespace oomcast::allocator
