// Which chunks of the host tier go first.
#pragma once

#include <tsl/robin_map.h>
#include <tsl/robin_set.h>

#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "sim/kv/host_tier.hpp"

namespace oomcast::kv {

class HostEviction {
 public:
  static std::unique_ptr<HostEviction> make(HostTier::Policy policy, std::int64_t capacity);
  virtual ~HostEviction() = default;

  virtual void insert(const HostTier::Item& item, std::uint64_t rank) = 0;
  // A request of this rank used a chunk that is here.
  virtual void access(const HostTier::Item& item, std::uint64_t rank) = 0;
  // A request wants to store chunks that are not here; once per request and chunk.
  virtual void missed(const std::vector<HostTier::Item>& items) = 0;
  // A request has ended: its chunks from the first to be evicted on. `next_rank` is advanced.
  struct Ended {
    BlockKey key = 0;
    bool reused = false;
    bool only_written = false;
  };
  virtual void finish(const std::vector<Ended>& chunks, std::uint64_t& next_rank) = 0;
  virtual void set_evictable(BlockKey key, bool evictable) = 0;
  // Takes out `count` evictable chunks that are not in `keep`; none and false if there are less.
  virtual bool take(std::int64_t count, const tsl::robin_set<BlockKey>& keep,
                    std::vector<BlockKey>& taken) = 0;
};

class LruEviction final : public HostEviction {
 public:
  void insert(const HostTier::Item& item, std::uint64_t rank) override;
  void access(const HostTier::Item& item, std::uint64_t rank) override;
  void missed(const std::vector<HostTier::Item>& items) override;
  void finish(const std::vector<Ended>& chunks, std::uint64_t& next_rank) override;
  void set_evictable(BlockKey key, bool evictable) override;
  bool take(std::int64_t count, const tsl::robin_set<BlockKey>& keep,
            std::vector<BlockKey>& taken) override;

 private:
  // Rank of the request, then tails first, then by group.
  using Rank = std::tuple<std::uint64_t, std::int64_t, std::int32_t>;
  struct Place {
    Rank rank;
    bool evictable = false;
  };
  void move(BlockKey key, Place& place, Rank rank);

  tsl::robin_map<BlockKey, Place> places_;  // never iterated
  std::set<std::pair<Rank, BlockKey>> evictable_;
};

// Adaptive replacement: T1 chunks used by one request, T2 by several, B1 and B2 what left them.
class ArcEviction final : public HostEviction {
 public:
  explicit ArcEviction(std::int64_t capacity) : capacity_(capacity) {}

  void insert(const HostTier::Item& item, std::uint64_t rank) override;
  void access(const HostTier::Item& item, std::uint64_t rank) override;
  void missed(const std::vector<HostTier::Item>& items) override;
  void finish(const std::vector<Ended>& chunks, std::uint64_t& next_rank) override;
  void set_evictable(BlockKey key, bool evictable) override;
  bool take(std::int64_t count, const tsl::robin_set<BlockKey>& keep,
            std::vector<BlockKey>& taken) override;

 private:
  enum List { kT1, kT2, kB1, kB2 };
  struct Place {
    List list = kT1;
    bool evictable = false;
    std::list<BlockKey>::iterator position;
  };
  std::list<BlockKey>& keys(List list) { return lists_[list]; }
  void move(Place& place, List to);

  std::int64_t capacity_;
  double target_ = 0;                       // size of T1 to aim at
  std::list<BlockKey> lists_[4];            // least recent first
  tsl::robin_map<BlockKey, Place> places_;  // never iterated
};

}  // namespace oomcast::kv
