// Inside of the scheduler. One class over several files: scheduler.cpp (requests, state),
// scheduler_step.cpp (choice of a batch), scheduler_admission.cpp (what a prefill batch may hold),
// scheduler_policy.cpp (order of the queue), scheduler_decode.cpp (decode and retraction),
// scheduler_output.cpp (results), scheduler_steady.cpp (many rounds at once), scheduler_host.cpp
// (copies to and from a host tier), scheduler_roles.cpp (prefill and decode servers).
#pragma once

#include <tsl/robin_map.h>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "sim/engines/sglang/kv_cache.hpp"
#include "sim/engines/sglang/running_batch.hpp"
#include "sim/engines/sglang/scheduler.hpp"
#include "sim/engines/sglang/scheduler_request.hpp"

namespace oomcast::sglang {

class Scheduler::Impl {
 public:
  explicit Impl(const SchedulerConfig& config);

  Added add(const RequestSpec& spec);
  Abort abort(RequestId id);
  bool handshake_done(RequestId id);
  bool transfer_done(RequestId id);
  bool copy_done(std::int64_t job);
  const StepPlan& schedule();
  const StepOutput& complete();
  std::int64_t steady_steps(std::int64_t limit);
  [[nodiscard]] SteadyShape steady_shape() const;
  const SteadyJump& advance_steady(std::int64_t n);

  [[nodiscard]] std::int64_t depth() const { return overlap_ ? 2 : 1; }
  [[nodiscard]] std::int64_t batches_in_flight() const { return in_flight_; }
  [[nodiscard]] bool work_in_flight() const;
  [[nodiscard]] bool idle() const { return live_.empty() && !work_in_flight(); }
  [[nodiscard]] PoolCounts slots() const;
  [[nodiscard]] PoolCounts window_slots() const;
  [[nodiscard]] StateCounts state_slots() const;
  [[nodiscard]] Tokens host_used() const { return Tokens{kv_.tree().host_used()}; }
  [[nodiscard]] std::int64_t running() const { return running_.unfinished(); }
  [[nodiscard]] std::int64_t waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
  [[nodiscard]] std::int64_t asking() const { return static_cast<std::int64_t>(asking_.size()); }
  [[nodiscard]] std::int64_t parked() const { return static_cast<std::int64_t>(parked_.size()); }
  [[nodiscard]] std::int64_t transferring() const {
    return static_cast<std::int64_t>(moving_.size());
  }
  [[nodiscard]] double new_token_ratio() const { return ratio_; }
  [[nodiscard]] std::int64_t preemptions() const { return preemptions_; }
  [[nodiscard]] std::int64_t prefix_hit_tokens() const { return prefix_hit_tokens_; }
  [[nodiscard]] std::optional<Stall> stall() const;
  [[nodiscard]] std::uint64_t state_digest() const;
  void check_conservation() const;

 private:
  struct Batch {
    std::int64_t step = 0;
    Kind kind = Kind::kIdle;
    std::vector<Row> rows;       // of a prefill; decode rows that were mixed in stand last
    std::size_t mixed_from = 0;  // first of those
    Row chunked;                 // whose prompt was unfinished then
    std::int64_t extend_tokens = 0;
    bool prefill_only = false;
    // Of a decode: its launch, rows whose results will count, and rows that left the running batch
    // since.
    std::int64_t launch = 0;
    std::int64_t live_rows = 0;
    std::vector<Row> leavers;

    [[nodiscard]] bool prefills() const { return kind == Kind::kPrefill || kind == Kind::kMixed; }
  };
  enum class Verdict { kContinue, kNoToken, kOther };
  // What a request may compute in a batch, if it may.
  struct Piece {
    Verdict verdict = Verdict::kContinue;
    std::int64_t tokens = 0;
    bool whole = false;
  };
  // State of one choice of a prefill batch (PrefillAdder and its memory budget).
  struct Adder {
    double total_offset = 0;
    std::int64_t current_offset = 0;
    std::int64_t window_offset = 0;
    std::int64_t input = 0;
    std::optional<std::int64_t> chunk;
    std::vector<Slot> picked;
    std::vector<Slot> preempted;
    Slot new_chunked = kNoSlot;
    // Tokens left and occupied of each request, by tokens left; made when first needed.
    std::optional<std::vector<std::pair<double, std::int64_t>>> states;
  };

  Request& at(Slot slot) { return slots_[slot]; }
  [[nodiscard]] const Request& at(Slot slot) const { return slots_[slot]; }
  [[nodiscard]] Row row_of(Slot slot) const { return {slot, at(slot).serial, at(slot).order}; }
  // Whether the row's request still lives (it may be finished).
  [[nodiscard]] bool present(const Row& row) const {
    return row.slot != kNoSlot && at(row.slot).serial == row.serial;
  }
  [[nodiscard]] std::int64_t output(const Request& request) const {
    return running_.output(request);
  }
  [[nodiscard]] std::int64_t length(const Request& request) const {
    return request.prompt + output(request);
  }
  [[nodiscard]] Batch& batch(std::int64_t step) {
    return batches_[static_cast<std::size_t>(step) % batches_.size()];
  }
  [[nodiscard]] const Batch& batch(std::int64_t step) const {
    return batches_[static_cast<std::size_t>(step) % batches_.size()];
  }
  // The batch whose results are not known when the next one is chosen; null without overlap.
  [[nodiscard]] Batch* pending();
  [[nodiscard]] std::int64_t rank(const Request& request) const {  // least is most preferred
    return low_first_ ? request.priority : -request.priority;
  }
  [[nodiscard]] Published published(const Request& request, std::int64_t length) const;

  // scheduler.cpp
  void set_content(Request& request, const RequestSpec& spec, bool stub);
  bool enqueue(Slot slot);
  void drop(Slot slot);  // never finishes; slots it has must be given back already
  void forget(Slot slot);

  // scheduler_step.cpp
  void start_plan();
  [[nodiscard]] bool defers_prefill();
  void finish_chunk_abort();
  void publish_chunk();
  void merge_last();
  void filter_running();
  bool choose_prefill(Batch& batch);
  [[nodiscard]] std::int64_t free_rows_for(std::int64_t held) const;
  void pick_waiting(Adder& adder);
  void take_picked_from_queue(const std::vector<Slot>& picked);
  bool build_prefill(Adder& adder, Batch& batch);
  void take_states(const std::vector<Slot>& picked);
  void extend_windows(const std::vector<Slot>& picked);
  void mix_running(Batch& batch);
  void record_prefill(const Batch& batch);
  void on_no_batch();
  [[nodiscard]] Slot never_admitted() const;
  void choose_batch(Batch& next);

  // scheduler_host.cpp
  std::optional<HostCopy> begin_copy(CopyBatch batch);

  // scheduler_steady.cpp
  [[nodiscard]] bool is_steady() const;
  [[nodiscard]] bool prefill_is_shut() const;

  // scheduler_roles.cpp
  Added add_to_role(Slot slot, bool stub);
  bool abort_in_role(Slot slot);
  [[nodiscard]] bool transfer_over(const Request& request, std::int64_t now) const;
  void take_bootstrapped();
  void choose_batch_of_prefills(Batch& next);
  void apply_prompts(const Batch& done);
  void finish_transfers();
  void choose_batch_of_decodes(Batch& next);
  void resume_parked();
  void preallocate();
  void take_arrived();
  void join_arrived();
  [[nodiscard]] std::int64_t reserved_slots(std::size_t more) const;
  void allocate_prompt(Slot slot, std::int64_t tokens);

  // scheduler_admission.cpp
  [[nodiscard]] Adder start_adder() const;
  [[nodiscard]] double reserved(const Request& request) const;
  [[nodiscard]] double remaining_total(const Adder& adder) const;
  [[nodiscard]] std::int64_t remaining_current(const Adder& adder) const;
  [[nodiscard]] std::int64_t remaining_window(const Adder& adder) const;
  [[nodiscard]] std::int64_t new_tokens(const Request& request) const;
  [[nodiscard]] std::int64_t window_tokens(std::int64_t extend, std::int64_t fresh,
                                           std::optional<std::int64_t> limit) const;
  [[nodiscard]] Verdict verdict(const Adder& adder) const;
  void charge(Adder& adder, std::int64_t tokens, std::int64_t fresh);
  void add_chunked(Adder& adder);
  [[nodiscard]] std::optional<std::int64_t> chunk_limit(const Request& chunked,
                                                        std::int64_t budget) const;
  Verdict add_one(Adder& adder, Slot slot);
  Verdict add_one_locked(Adder& adder, Slot slot, std::int64_t need);
  [[nodiscard]] Piece choose_piece(const Adder& adder, const Request& request, std::int64_t host,
                                   std::int64_t need) const;
  Verdict add_fixed_length(Adder& adder, Slot slot);
  [[nodiscard]] bool fixed_length_fits(Adder& adder, const Request& request,
                                       std::int64_t paged) const;
  void pick(Adder& adder, Slot slot, std::int64_t extend, bool whole);
  bool preempt_for(Adder& adder, const Request& request);

  // scheduler_policy.cpp
  void order_waiting();
  std::vector<bool> match_waiting();
  void order_by_routing_key();
  void order_by_response_ratio(const std::vector<bool>& put_last);
  void touch_waiting();
  [[nodiscard]] std::int64_t prefill_work(const Request& request) const;

  // scheduler_decode.cpp
  bool choose_decode(Batch& batch);
  bool exclude_certain_finishes();
  [[nodiscard]] std::int64_t decode_need() const;
  void retract();
  [[nodiscard]] std::vector<Slot> retraction_order() const;
  void give_up(Slot slot, std::int64_t remaining);  // KV freed, nothing published
  void slide_windows();
  bool take_decode_slots();
  void leave_running(Slot slot, bool result_counts);

  // scheduler_output.cpp
  void apply_prefill(const Batch& batch);
  void apply_decode(Batch& batch);
  void append_token(Slot slot);
  [[nodiscard]] std::optional<FinishReason> finish_reason(const Request& request) const;
  void finish(Slot slot, FinishReason reason, std::vector<FinishedRequest>& finished);

  SchedulerConfig config_;
  SchedulerRules rules_;
  KvCache kv_;
  RequestSlots slots_;
  RunningBatch running_;
  std::deque<Slot> waiting_;
  tsl::robin_map<RequestId, Slot> live_;  // never iterated

  bool overlap_;
  bool preemption_;
  bool low_first_;
  SchedulePolicy policy_;
  std::int64_t max_prompt_;  // max_req_input_len
  std::int64_t max_length_;  // max_req_len
  std::int64_t clip_;
  std::optional<std::int64_t> min_free_slots_;
  double ratio_init_;
  double ratio_min_;
  double ratio_decay_;

  double ratio_;
  std::int64_t free_rows_;
  // Prefill and decode roles.
  std::deque<Slot> asking_;
  std::deque<Slot> parked_;
  std::deque<Slot> moving_;
  std::int64_t free_metadata_rows_;

  // Host tier: nodes of each copy under way.
  tsl::robin_map<std::int64_t, std::vector<NodeCopy>> copies_;  // never iterated
  std::int64_t next_copy_ = 1;

  Slot chunked_ = kNoSlot;
  bool abort_chunked_ = false;
  std::int64_t decode_rounds_left_ = 0;
  std::int64_t prefilled_tokens_ = 0;  // processed_tokens_counter
  std::int64_t refresh_calls_ = 0;
  std::int64_t queue_clock_ = 0;

  std::array<Batch, 3> batches_;
  std::int64_t step_ = 0;
  std::int64_t in_flight_ = 0;
  EngineError error_ = EngineError::kNone;
  std::int64_t idle_rounds_ = 0;  // in a row, with nothing from outside

  std::uint64_t next_serial_ = 1;
  std::int64_t preemptions_ = 0;
  std::int64_t prefix_hit_tokens_ = 0;
  std::vector<RequestId> aborted_;  // since the last plan

  StepPlan plan_;
  StepOutput output_;
  SteadyJump jump_;
};

}  // namespace oomcast::sglang
