// OffloadingConnector with the CPU tier: blocks are copied to host memory as they are computed, and
// back when a later prompt begins alike and they are gone from the GPU.
// Sources: distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py, v1/kv_offload/cpu/.
#pragma once

#include <tsl/robin_map.h>
#include <tsl/robin_set.h>

#include <memory>
#include <set>

#include "sim/engines/vllm/kv_connector.hpp"
#include "sim/kv/host_tier.hpp"

namespace oomcast::vllm {

class OffloadingConnector final : public KvConnector {
 public:
  OffloadingConnector(const SchedulerConfig& config, std::int64_t hash_block_size);

  void added(Request& request) override;
  Match match(Request& request, std::int64_t local) override;
  void allocated(Request& request, std::int64_t external) override;
  void preempted(const Request& request) override;
  bool ended(Request& request, End end, std::vector<Handoff>& handoffs) override;
  void plan_step(std::span<const Scheduled> scheduled, StepTransfers& transfers) override;
  std::optional<RequestId> job_done(JobId job) override;
  void sent(const Request& request) override;
  [[nodiscard]] bool jobs_under_way() const override { return !jobs_.empty(); }
  void count(TransferCounts& counts) const override;

 private:
  // A KV cache group in chunks.
  struct Group {
    std::int64_t block_tokens = 0;
    std::int64_t chunk_tokens = 0;
    std::int64_t hashes_per_chunk = 1;
    std::int64_t window_chunks = 0;  // 0: every chunk of a prefix is needed
  };
  struct GroupState {
    std::vector<kv::BlockKey> keys;  // of its full chunks so far
    BlockIds blocks;                 // as handed out; 0 where outside the window or handed on
    std::int64_t settled = 0;        // leading blocks handed out in earlier steps
    std::int64_t next = 0;           // first chunk not offered to the tier yet

    void forget_blocks() {
      blocks.clear();
      settled = 0;
    }
  };
  // A request, until its last job is reported.
  struct State {
    std::uint64_t serial = 0;
    RequestId id = 0;
    std::int64_t prompt_len = 0;
    std::int64_t known = 0;
    std::int64_t local = 0;  // tokens found on the GPU when it was looked up
    std::int64_t shared_boundary = 0;
    std::optional<Tokens> max_offload;
    bool ended = false;
    bool finished = false;         // the tier knows of its end
    std::int64_t offloadable = 0;  // when it ended
    std::vector<GroupState> groups;
    std::set<JobId> jobs;
    // With stores_end_with_request: it stored something; keys that cannot be loaded yet.
    bool stored = false;
    std::vector<kv::BlockKey> unready;
    kv::HostTier::Access access;
  };
  struct Job {
    std::uint64_t serial = 0;
    std::vector<kv::BlockKey> keys;
    bool load = false;
    bool synchronous = false;
    BlockIds fenced;    // blocks watched from the start: those of windows
    BlockIds deferred;  // and those watched from the end of their request on
  };

  State& state(std::uint64_t serial);
  void update_keys(State& state, Request& request) const;
  [[nodiscard]] std::int64_t offloadable(const State& state, std::int64_t tokens) const;
  [[nodiscard]] std::int64_t storable(const GroupState& group, std::size_t g,
                                      std::int64_t tokens) const;
  [[nodiscard]] bool reachable(const State& state, std::size_t g, std::int64_t chunk) const;

  // Tokens beyond the local ones, or nothing if it is too early to say.
  std::optional<std::int64_t> lookup(const State& state, std::int64_t longest) const;
  std::optional<std::int64_t> chunks_hit(const State& state, std::size_t g, std::int64_t first,
                                         std::int64_t end) const;
  [[nodiscard]] kv::HostTier::Presence find(kv::BlockKey key) const;
  [[nodiscard]] bool being_loaded(const State& state, std::int64_t hit) const;
  bool fits_sync_budget(const Request& request, std::int64_t local, std::int64_t external);

  void take_blocks(State& state, const Scheduled& scheduled);
  void forget_reused_blocks();
  void flush_reused_blocks();
  // Offers the chunks of so many tokens; those of `passed` tokens are not offered again.
  void plan_store(State& state, std::int64_t tokens, std::int64_t passed, StepTransfers& transfers);
  void watch(const BlockIds& blocks, JobId job);
  void unwatch(const BlockIds& blocks, JobId job);
  void release_unready(State& state);
  void release_if_over(State& state);

  ConnectorConfig config_;
  std::vector<Group> groups_;
  std::vector<std::size_t> full_groups_;
  std::vector<std::size_t> window_groups_;  // widest first
  std::int64_t alignment_ = 1;              // where hits can end, tokens
  bool gpu_caching_;
  std::int64_t sync_budget_left_ = 0;  // bytes, of this step
  kv::HostTier tier_;

  tsl::robin_map<std::uint64_t, std::unique_ptr<State>> states_;  // by serial
  tsl::robin_map<JobId, Job> jobs_;                               // never iterated
  JobId next_job_ = 0;
  tsl::robin_set<kv::BlockKey> loading_;                     // keys of asynchronous loads
  tsl::robin_map<kv::BlockId, std::vector<JobId>> watched_;  // stores not reported yet

  // Of the step under way.
  std::vector<LoadJob> loads_;
  std::vector<std::uint64_t> preempted_;
  std::vector<std::uint64_t> ended_;
  std::vector<kv::BlockId> handed_out_;  // hits included
  std::set<JobId> flushes_;
};

}  // namespace oomcast::vllm
