// The host tier of vLLM's OffloadingConnector: chunks of KV kept in host memory under LRU or ARC.
// Sources: v1/kv_offload/cpu/manager.py and policies/ of vLLM 0.33.0.
//
//   - Chunk numbers are handed out ascending, then those given back, latest first.
//   - Never evicted: chunks being read (pinned), being written, or part of the same offer.
//   - Recency is a request's: all it reads or writes ranks by the request's first access, tails
//     before heads; when it ends its chunks rank anew in that order.
#pragma once

#include <tsl/robin_map.h>

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "sim/kv/block_pool.hpp"

namespace oomcast::kv {

class HostEviction;

class HostTier {
 public:
  enum class Policy { kLru, kArc };
  enum class Presence { kAbsent, kWriting, kReady };

  // A chunk as a request sees it.
  struct Item {
    BlockKey key = 0;
    std::int64_t end = 0;    // of its tokens, in the request
    std::int32_t group = 0;  // KV cache group
  };
  // What one request has done to the tier. Lives from its first access until finish().
  struct Access {
    std::uint64_t rank = 0;  // 0: none yet
    std::vector<Item> seen;  // in order of first access
    struct Marks {
      bool seen = false;
      bool inserted = false;
      bool reused = false;
      bool missed = false;
    };
    tsl::robin_map<BlockKey, Marks> marks;  // never iterated
  };

  // `store_threshold` from 2 on: a chunk is accepted at its so manyth offer.
  HostTier(std::int64_t capacity, Policy policy, std::int64_t store_threshold);
  ~HostTier();

  [[nodiscard]] Presence find(BlockKey key) const;

  // Chunks to be read, all ready; appends their numbers. They stay until unpin().
  void pin(Access& access, const std::vector<Item>& items, std::vector<std::int64_t>& numbers);
  void unpin(const std::vector<BlockKey>& keys);

  // Makes room for the chunks of an offer that are not here; false if there is none for all of
  // them: then nothing is accepted. They count as being written until written().
  bool offer(Access& access, const std::vector<Item>& items, std::vector<Item>& accepted,
             std::vector<std::int64_t>& numbers);
  void written(const std::vector<BlockKey>& keys);

  // The request has ended.
  void finish(Access& access);

  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  [[nodiscard]] std::int64_t used() const;
  [[nodiscard]] std::int64_t evictable() const { return evictable_; }
  [[nodiscard]] std::int64_t writing() const { return writing_; }

 private:
  struct Chunk {
    std::int64_t number = 0;
    std::int32_t readers = kWriting;
  };
  static constexpr std::int32_t kWriting = -1;
  struct Offers {
    std::int64_t count = 0;
    std::list<BlockKey>::iterator place;
  };

  void record(Access& access, const Item& item, bool reused);
  void count_offers(const std::vector<Item>& items);
  [[nodiscard]] bool offered_often(BlockKey key) const;
  bool evict(std::int64_t count, const std::vector<Item>& keep);
  std::int64_t new_number();

  std::int64_t capacity_;
  std::int64_t store_threshold_;
  std::int64_t numbered_ = 0;               // numbers handed out at least once
  std::vector<std::int64_t> free_numbers_;  // given back
  std::int64_t evictable_ = 0;
  std::int64_t writing_ = 0;
  std::uint64_t next_rank_ = 0;
  tsl::robin_map<BlockKey, Chunk> chunks_;  // never iterated
  std::unique_ptr<HostEviction> eviction_;
  tsl::robin_map<BlockKey, Offers> offers_;  // with a threshold; never iterated
  std::list<BlockKey> offer_order_;          // least recently offered first
};

}  // namespace oomcast::kv
