// Inside of the scheduler. One class over several files: scheduler.cpp (requests, state),
// scheduler_step.cpp and scheduler_admission.cpp (schedule), scheduler_output.cpp (complete),
// scheduler_transfer.cpp (what a connector adds to both), scheduler_lane.cpp (fast-forward).
#pragma once

#include <tsl/robin_map.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "sim/core/digest.hpp"
#include "sim/engines/vllm/kv_connector.hpp"
#include "sim/engines/vllm/scheduler.hpp"
#include "sim/engines/vllm/scheduler_kv.hpp"
#include "sim/engines/vllm/scheduler_lane.hpp"
#include "sim/engines/vllm/scheduler_queue.hpp"
#include "sim/engines/vllm/scheduler_request.hpp"

namespace oomcast::vllm {

class Scheduler::Impl {
 public:
  explicit Impl(const SchedulerConfig& config);

  Added add(const RequestSpec& spec);
  Abort abort(RequestId id);
  const StepPlan& schedule();
  const StepOutput& complete(const TransferReport& report);
  void drop_empty_batches();
  std::int64_t steady_steps(std::int64_t limit);
  [[nodiscard]] SteadyShape steady_shape() const;
  const SteadyJump& advance_steady(std::int64_t n);

  [[nodiscard]] Derived derived() const;
  [[nodiscard]] std::int64_t depth() const { return depth_; }
  [[nodiscard]] std::int64_t batches_in_flight() const { return in_flight_; }
  [[nodiscard]] bool work_in_flight() const;
  [[nodiscard]] bool idle() const {
    return live_.empty() && !work_in_flight() && !transfers_pending();
  }
  [[nodiscard]] PoolCounts blocks() const;
  [[nodiscard]] std::int64_t running() const { return running_.size(); }
  [[nodiscard]] std::int64_t waiting() const { return waiting_.size() + kv_waiting_.size(); }
  [[nodiscard]] TransferCounts transfers() const;
  [[nodiscard]] std::int64_t host_chunks() const;
  [[nodiscard]] std::int64_t preemptions() const { return preemptions_; }
  [[nodiscard]] std::int64_t prefix_hit_tokens() const { return prefix_hit_tokens_; }
  [[nodiscard]] std::optional<Stall> stall();
  [[nodiscard]] std::uint64_t state_digest() const;
  void check_conservation() const;

 private:
  // A scheduled request outside the lane.
  struct Entry {
    Slot slot = kNoSlot;
    std::uint64_t serial = 0;  // of the request in the slot then
    std::int64_t tokens = 0;
    std::int64_t drafts = 0;
    std::int64_t hit = 0;
    ScheduledRequest::Kind kind = ScheduledRequest::Kind::kContinued;
    bool yields = false;  // a token will be sampled
    bool first = false;   // it is the first output token
  };
  struct Batch {
    std::int64_t step = 0;
    std::int64_t number = 0;  // of the batches that are not empty, from 1; 0: empty
    std::int64_t lane_tokens = 0;
    std::vector<Slot> lane_ends;  // lane members for which it is the last batch, in running order
    std::vector<Entry> entries;   // behind the lane

    [[nodiscard]] bool empty() const { return lane_tokens == 0 && entries.empty(); }
  };
  // State of one schedule() while it runs.
  struct Budget {
    std::int64_t tokens = 0;
    std::int64_t input = 0;
    std::int64_t threshold = 0;  // long_prefill_token_threshold in force
    bool defer_prefills = false;
    bool prefill_scheduled = false;
    bool prefill_admitted = false;
  };
  // The last admission that was refused for want of room, so that it need not be tried again while
  // nothing can have changed.
  struct Refused {
    Slot slot = kNoSlot;
    std::uint64_t serial = 0;
    std::int64_t known = 0;  // its tokens then; output in flight may still arrive
    std::uint64_t insertions = 0;
    std::uint64_t evictions = 0;
    std::uint64_t frees = 0;
    bool full_sequence = false;  // whatever the budget
    bool firm = false;           // evictions can only raise what it needs
    std::int64_t tokens_left = 0;
    std::int64_t queued = 0;
  };

  Request& at(Slot slot) { return slots_[slot]; }
  [[nodiscard]] const Request& at(Slot slot) const { return slots_[slot]; }
  Batch& batch(std::int64_t i) {  // 0 = oldest in flight
    return pipeline_[static_cast<std::size_t>((first_batch_ + i) % depth_)];
  }
  [[nodiscard]] const Batch& batch(std::int64_t i) const {
    return pipeline_[static_cast<std::size_t>((first_batch_ + i) % depth_)];
  }
  [[nodiscard]] bool covered_by_lane(const Entry& entry, std::int64_t step) const;
  [[nodiscard]] std::int64_t output_limit(const Request& request) const;

  // scheduler.cpp
  void set_content(Request& request, const RequestSpec& spec);
  void release_request(Slot slot);
  void stop_running(Slot slot);
  void digest_request(Digest& digest, const Request& request, const kv::PoolListing& pool) const;

  // scheduler_step.cpp
  Budget start_budget();
  [[nodiscard]] bool some_decode_runs() const;
  void schedule_running(Budget& budget);
  // Tokens of a running request in this step, 0: none.
  std::int64_t running_tokens(const Request& request, const Budget& budget) const;
  enum class Room {
    kMade,
    kGone,  // the request itself had to go
    kNone,  // the victim's blocks would not be free yet, so nobody is preempted
  };
  // Preempts until the slots are there. `behind` is the running request to go on with.
  Room make_room(Slot slot, std::int64_t tokens, Budget& budget, Slot& behind);
  [[nodiscard]] Slot choose_victim() const;
  void take_back(Slot victim, Budget& budget);
  void preempt(Slot slot);

  // scheduler_admission.cpp
  void schedule_waiting(Budget& budget);
  enum class Verdict {
    kAdmitted,    // or its transfer has started
    kPassedOver,  // it keeps its place, those behind it have their turn
    kStop,
  };
  // Visits a queue and counts who is passed over; false if admission stopped.
  bool admit_from(WaitingQueue& queue, Budget& budget, std::int64_t& passed_over);
  Verdict try_admit(Slot slot, Budget& budget);
  void admit(Slot slot, std::int64_t computed, std::int64_t tokens, std::int64_t drafts,
             Budget& budget);
  [[nodiscard]] KvManager::Ask admission_ask(const PrefixHit& hit, std::int64_t external) const;
  void leave_queue(Slot slot);
  void remember_refusal(Slot slot, bool full_sequence, bool firm, const Budget& budget);
  [[nodiscard]] bool still_refused(std::int64_t tokens_left) const;

  // scheduler_step.cpp again
  [[nodiscard]] std::int64_t align_to_states(const Request& request, std::int64_t tokens,
                                             std::int64_t hit) const;
  [[nodiscard]] std::int64_t align_to_blocks(const Request& request, std::int64_t tokens,
                                             std::int64_t hit) const;
  [[nodiscard]] std::int64_t align_to_states_fine(const Request& request, std::int64_t tokens,
                                                  std::int64_t hit, std::int64_t prefill_end) const;
  void push_entry(Slot slot, std::int64_t tokens, std::int64_t drafts, std::int64_t hit,
                  ScheduledRequest::Kind kind);
  void finish_schedule(const Budget& budget);
  void advance_entry(Entry& entry);
  void count_entry(const Entry& entry);
  void fill_detail(const Entry& entry, std::size_t position);

  // scheduler_output.cpp
  void clear_output();
  void take_results(const Batch& done);
  void apply_entry(const Entry& entry, std::int64_t step);
  void apply_tokens(Slot slot, std::int64_t generated, bool stale);
  void finish(Slot slot);
  void propose_drafts(const Batch& done);

  // scheduler_transfer.cpp
  [[nodiscard]] bool transfers_pending() const;
  // Puts a request whose KV arrived back among those that can be admitted; false: not arrived.
  bool take_up(Request& request);
  Verdict start_transfer(Slot slot, const PrefixHit& hit, std::int64_t external);
  [[nodiscard]] std::int64_t reserved_blocks() const;
  // The request has left its list: its blocks go, now or when nobody needs them any more.
  void end_request(Slot slot, KvConnector::End end);
  void free_blocks(Request& request);
  void batch_is_over(const Batch& done);
  void plan_transfers();
  void find_failed_loads(const TransferReport& report);
  void apply_report(const TransferReport& report);
  void received(RequestId id);
  void release_held(RequestId id);

  // scheduler_lane.cpp
  void enter_lane();
  void leave_lane();
  [[nodiscard]] bool may_join(const Request& request) const;
  void join_lane(Slot slot);
  void schedule_lane();
  bool lane_blocks(std::int64_t step);
  void lane_hashes(std::int64_t step);
  void end_lane_members(Batch& current);
  void finish_lane_members(const Batch& done);
  void restore(Request& request, std::int64_t step) const;
  void abort_in_lane(Slot slot);
  [[nodiscard]] bool pipeline_is_steady() const;
  [[nodiscard]] bool ends_in_flight() const;
  [[nodiscard]] std::int64_t steps_until_blocks_end(std::int64_t limit) const;

  SchedulerConfig config_;
  SchedulerRules rules_;
  KvManager kv_;
  RequestSlots slots_;
  SlotList running_;
  WaitingQueue waiting_;
  WaitingQueue kv_waiting_;               // KV on the way or here; looked at first
  tsl::robin_map<RequestId, Slot> live_;  // never iterated

  std::int64_t depth_;
  std::int64_t max_scheduled_;
  std::int64_t max_batched_;
  std::int64_t max_model_len_;
  std::int64_t max_active_;
  std::int64_t speculative_;    // K
  std::int64_t lookahead_ = 0;  // num_lookahead_tokens
  std::int64_t draft_slots_ = 0;
  std::int64_t prefill_interval_ = 1;
  std::int64_t mamba_block_ = 0;  // block size of align groups, 0: none
  bool by_priority_;
  bool spaced_decodes_ = false;  // async pipeline stages: a request decodes every P steps

  std::vector<Batch> pipeline_;
  std::int64_t first_batch_ = 0;
  std::int64_t in_flight_ = 0;
  Batch* current_ = nullptr;               // while schedule() runs
  bool tracks_tables_ = false;             // with detail or a connector
  std::vector<std::int64_t> table_sizes_;  // before this step, a row an entry
  PrefixHit no_hit_;

  std::int64_t step_ = 0;
  std::int64_t executed_steps_ = 0;
  std::int64_t last_prefill_step_ = 0;
  bool prefill_capacity_bound_ = false;

  std::unique_ptr<KvConnector> connector_;
  bool recompute_failed_loads_ = false;
  bool requires_delivery_ = false;      // output in flight of a preempted request is dropped
  std::int64_t draft_step_blocks_ = 0;  // of one step with drafts
  bool ended_since_schedule_ = false;
  std::set<Slot> prefilling_;                      // in transfer, or admitted with prompt left
  SlotList held_;                                  // ended requests that keep blocks
  std::vector<Slot> failing_;                      // during one complete()
  std::vector<KvConnector::Scheduled> scheduled_;  // during one schedule()
  // Blocks given up that a batch in flight may still write, with that batch.
  struct Fenced {
    std::int64_t batch = 0;
    std::vector<kv::BlockId> blocks;
  };
  bool defer_block_free_ = false;
  std::deque<Fenced> fenced_;
  std::int64_t batches_scheduled_ = 0;
  std::int64_t batches_over_ = 0;

  Lane lane_;
  bool lane_possible_ = false;
  Slot first_loose_ = kNoSlot;  // first running request behind the lane
  Refused refused_;
  std::uint64_t frees_ = 0;  // times a request gave up its blocks

  std::uint64_t next_serial_ = 1;
  std::uint64_t next_order_ = 1;
  std::int64_t preemptions_ = 0;
  std::int64_t prefix_hit_tokens_ = 0;

  StepPlan plan_;
  StepOutput output_;
  SteadyJump jump_;
};

}  // namespace oomcast::vllm
