// vLLM's KV cache manager and coordinator: block tables of all groups of all requests over one
// pool. Sources: v1/core/kv_cache_manager.py, kv_cache_coordinator.py,
// single_type_kv_cache_manager.py.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/engines/vllm/scheduler_config.hpp"
#include "sim/engines/vllm/scheduler_request.hpp"
#include "sim/kv/block_pool.hpp"
#include "sim/kv/span_pool.hpp"

namespace oomcast::vllm {

// What a prefix lookup found. Buffers are reused.
struct PrefixHit {
  std::vector<std::vector<kv::BlockId>> blocks;  // per group; 0 = block outside the window
  kv::SpanPool::Hit spans;                       // in place of `blocks` where KvManager keeps spans
  std::int64_t tokens = 0;
  std::int64_t shared_boundary = 0;  // a longer prefix that only some groups have; 0: none

  void clear() {
    for (std::vector<kv::BlockId>& group : blocks) {
      group.clear();
    }
    spans.clear();
    tokens = 0;
    shared_boundary = 0;
  }
  [[nodiscard]] bool empty() const {
    for (const std::vector<kv::BlockId>& group : blocks) {
      if (!group.empty()) {
        return false;
      }
    }
    return spans.blocks == 0;
  }
};

// Why allocate() said no.
enum class Refusal { kNone, kFullSequence, kChunk };

class KvManager {
 public:
  explicit KvManager(const SchedulerConfig& config);

  // Of the pool: blocks in all, free, free and still known by a hash; and counters that change
  // whenever a hash enters the index, and whenever one leaves it because its block is taken.
  [[nodiscard]] std::int64_t total() const { return spans_ ? spans_->total() : pool_.total(); }
  [[nodiscard]] std::int64_t available() const { return spans_ ? spans_->free() : pool_.free(); }
  [[nodiscard]] std::int64_t cached_free() const {
    return spans_ ? spans_->cached_free() : pool_.cached_free();
  }
  [[nodiscard]] std::uint64_t insertions() const {
    return spans_ ? spans_->insertions() : pool_.insertions();
  }
  [[nodiscard]] std::uint64_t evictions() const {
    return spans_ ? spans_->evictions() : pool_.evictions();
  }
  // The pool block by block, and the blocks of a table; for plans with details, tests and digests.
  [[nodiscard]] kv::PoolListing listing() const {
    return spans_ ? spans_->listing() : pool_.listing();
  }
  [[nodiscard]] std::vector<kv::BlockId> blocks_of(const GroupTable& table) const;
  [[nodiscard]] std::int64_t size_of(const GroupTable& table) const {
    return spans_ ? table.spans.blocks : static_cast<std::int64_t>(table.blocks.size());
  }
  void check() const { spans_ ? spans_->check() : pool_.check(); }
  // All groups are full attention with hashes of their block size: blocks change only at block
  // boundaries, and content nobody shares needs no hashes.
  [[nodiscard]] bool plain() const { return plain_; }
  [[nodiscard]] std::int64_t block_size() const { return groups_.front().block_size; }
  [[nodiscard]] std::size_t num_groups() const { return groups_.size(); }
  [[nodiscard]] std::int64_t hash_block_size() const { return hash_block_size_; }
  [[nodiscard]] std::int64_t scheduler_block_size() const { return scheduler_block_size_; }
  [[nodiscard]] std::int64_t hash_lookahead() const { return hash_lookahead_; }
  [[nodiscard]] bool caching() const { return caching_; }
  [[nodiscard]] bool eagle_drop() const { return eagle_drop_; }
  [[nodiscard]] bool partial_hits() const { return partial_hits_; }

  void step_starts();
  // Longest prefix of the request's known tokens, but the last, that all groups can serve.
  const PrefixHit& find_hit(Request& request);

  struct Ask {
    std::int64_t new_tokens = 0;
    std::int64_t lookahead = 0;
    const PrefixHit* hit = nullptr;  // on admission
    std::int64_t external = 0;       // tokens behind the hit that a connector brings
    std::int64_t reserve = 0;        // blocks to leave to others
    bool full_sequence = false;      // all known tokens must fit now
    bool headroom = false;           // keep the watermark free
    bool unpublished = false;        // hash nothing yet: the blocks are still to be filled
  };
  // Slots for `new_tokens` more tokens; tables, hashes and the free list change as the engine's do,
  // also on refusal (blocks outside windows are freed first).
  Refusal allocate(Request& request, const Ask& ask);
  // Blocks that admission needs for the whole sequence, hits in the free list included; `external`
  // tokens behind the hit need no computing.
  std::int64_t full_sequence_need(const Request& request, const PrefixHit& hit,
                                  std::int64_t external = 0);
  // Of the blocks that an admission asks for, those that are in no hit; the fewer the longer it is.
  // For plain groups.
  [[nodiscard]] std::int64_t fresh_need(const Request& request, const Ask& ask) const;
  // Blocks that the request still needs to hold `tokens` tokens.
  std::int64_t remaining_need(const Request& request, std::int64_t tokens) const;
  // One more block in every group.
  void take_block(Request& request) {
    if (spans_) {
      spans_->take(request.groups.front().spans);
      return;
    }
    for (GroupTable& table : request.groups) {
      table.blocks.push_back(pool_.take());
    }
  }
  // Hashes the blocks of the first `tokens` tokens.
  void cache(Request& request, std::int64_t tokens);
  // The same for plain groups whose last full block ends at `tokens`, known tokens set aside.
  void cache_filled(Request& request, std::int64_t tokens);
  // The last position in a prompt of `tokens` tokens, in units, whose mamba state a later request
  // can start from.
  [[nodiscard]] std::int64_t state_boundary(std::int64_t tokens, std::int64_t unit) const;
  void free(Request& request);
  // Takes the blocks out of the tables without freeing them, to be given back by free_fenced().
  std::vector<kv::BlockId> surrender(Request& request);
  void free_fenced(const std::vector<kv::BlockId>& blocks);
  // Frees blocks outside of windows, `processed` tokens being done.
  void trim(Request& request, std::int64_t processed);
  // After the last allocation of a step: copies' sources and targets are released.
  void step_ends();
  // Indexes the hashes that only the request knew; from now on all of its blocks are indexed.
  void publish(Request& request);

 private:
  struct Group {
    KvGroup::Type type = KvGroup::Type::kFull;
    std::int64_t block_size = 16;
    std::int64_t window = 0;
    std::int64_t speculative_blocks = 0;
    std::int64_t hashes_per_block = 1;
    std::int64_t admission_cap = 0;  // blocks; 0: none
    bool align = false;              // mamba
    bool eagle_drop = false;         // the last hit block is dropped
  };
  // Groups with the same spec are looked up together.
  struct Family {
    std::vector<std::size_t> members;
    bool eagle_drop = false;
    // During one lookup:
    std::int64_t found = -1;  // tokens of the latest hit, -1: not looked up yet
    bool verified = false;    // its last block was dropped for the candidate length
  };
  struct Copy {
    kv::BlockId source;
    kv::BlockId target;
  };

  // scheduler_kv.cpp
  void build_groups(const SchedulerConfig& config);
  void build_families(const SchedulerConfig& config);
  [[nodiscard]] std::int64_t skipped_tokens(const Group& group, std::int64_t computed) const;
  // Whether the hit ends inside a block of group g, which then is copied.
  [[nodiscard]] bool has_partial_hit(const Request& request, const PrefixHit* hit,
                                     std::size_t g) const;
  std::int64_t need(const Request& request, std::int64_t tokens, const PrefixHit* hit,
                    std::int64_t computed, std::int64_t main_tokens, bool cap) const;
  std::int64_t need_plain(const Request& request, std::size_t g, std::int64_t tokens,
                          const PrefixHit* hit, std::int64_t computed, bool cap) const;
  std::int64_t need_align(const Request& request, std::size_t g, std::int64_t main_tokens,
                          const PrefixHit* hit) const;
  void free_skipped(Request& request, std::int64_t processed);
  void free_skipped_align(Request& request, std::size_t g, std::int64_t processed);
  void adopt_hit(Request& request, const PrefixHit& hit, std::int64_t external);
  void append_blocks(Request& request, std::int64_t tokens, std::int64_t main_tokens);
  void append_plain(GroupTable& table, const Group& group, std::size_t g, std::int64_t tokens);
  void append_align(GroupTable& table, const Group& group, std::size_t g, std::int64_t tokens);

  // scheduler_kv_cache.cpp: hashing
  void index_blocks(Request& request, std::size_t g, std::int64_t from, std::int64_t to);
  void cache_group(Request& request, std::size_t g, std::int64_t tokens);
  void cache_full_tail(Request& request, std::size_t g, std::int64_t tokens);
  kv::BlockKey cache_state_tail(Request& request, std::size_t g, std::int64_t tokens);
  void cache_partial(Request& request, kv::BlockId block, std::size_t g, std::int64_t tokens);
  [[nodiscard]] bool reachable(const Request& request, const Group& group,
                               std::int64_t block) const;
  [[nodiscard]] std::int64_t hashed_blocks(const Request& request) const;
  [[nodiscard]] kv::BlockKey key_of(const Request& request, std::size_t g,
                                    std::int64_t block) const;
  kv::BlockKey fine_key(const Request& request, std::size_t g, std::int64_t tokens) const;

  // scheduler_kv_lookup.cpp
  std::int64_t lookup(const Request& request, const Family& family, std::int64_t max_length,
                      bool drop);
  std::int64_t lookup_full(const Request& request, const Family& family, std::int64_t max_length,
                           bool drop);
  std::int64_t lookup_window(const Request& request, const Family& family, std::int64_t max_length,
                             bool drop);
  std::int64_t lookup_chunked(const Request& request, const Family& family,
                              std::int64_t max_length);
  std::int64_t lookup_mamba(const Request& request, const Family& family, std::int64_t max_length);
  bool cached_everywhere(const Request& request, const Family& family, std::int64_t hash_index);
  bool follows_everywhere(const Request& request, const Family& family, std::int64_t hash_index);
  void lookup_spans(const Request& request, std::int64_t max_length);
  void lookup_hybrid(const Request& request, std::int64_t max_length);

  SchedulerRules rules_;
  bool caching_;
  bool plain_ = false;
  bool hybrid_ = false;
  bool eagle_drop_ = false;    // use_eagle_block_drop
  bool partial_hits_ = false;  // hits inside a block (enable_partial_hash_hits)
  std::int64_t hash_lookahead_ = 0;
  std::int64_t max_model_len_;
  std::int64_t scheduler_block_size_ = 16;
  std::int64_t hash_block_size_ = 16;
  std::int64_t hit_alignment_ = 16;  // cache_hit_alignment_tokens
  std::int64_t watermark_blocks_ = 0;
  std::optional<Tokens> retention_;
  kv::BlockPool pool_;  // unless `spans_`
  // One group of full attention whose blocks only the scheduler moves: requests keep what they have
  // until they end.
  std::optional<kv::SpanPool> spans_;
  std::vector<Group> groups_;
  std::vector<Family> families_;  // full attention first
  PrefixHit hit_;
  std::vector<kv::BlockKey> keys_;                // of blocks to be indexed
  std::vector<kv::BlockId> found_;                // of one hash in each member of a family
  std::vector<kv::PrefixIndex::Cursor> cursors_;  // of a walk, in each member of a family
  // Per group: states hashed in this step, which no other request can use in it.
  std::vector<std::vector<kv::BlockKey>> hashed_this_step_;
  std::vector<std::vector<Copy>> copies_;  // per group, of this step
};

}  // namespace oomcast::vllm
