// Settings of SGLang's scheduler under the engine's own names, and what differs between its
// versions, as data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"
#include "sim/core/version.hpp"

namespace oomcast::sglang {

enum class SchedulePolicy { kFcfs, kLof, kRoutingKey, kLpm, kDfsWeight, kHrrn, kShortestPrefill };
enum class EvictionPolicy { kLru, kLfu, kSlru, kPriority, kTlru, kFifo, kMru, kFilo };
enum class RetractionPolicy { kLength, kPriority };

// What a server of a prefill/decode disaggregation does; kMixed: all of it.
enum class Role { kMixed, kPrefill, kDecode };

// When KV is copied to the host (--hicache-write-policy): with the first hit, with the second, or
// as it leaves the card.
enum class WritePolicy { kWriteThrough, kWriteThroughSelective, kWriteBack };

struct HostTierSettings {
  Tokens pool;  // slots, in whole pages
  WritePolicy policy = WritePolicy::kWriteThrough;

  [[nodiscard]] bool writes_back() const { return policy == WritePolicy::kWriteBack; }
  [[nodiscard]] std::int64_t write_hits() const {
    return policy == WritePolicy::kWriteThrough ? 1 : 2;
  }
};

// Recurrent layers (mem_cache/memory_pool.py, HybridReqToTokenPool; runtime_context.py for the
// grids). With a prefix cache states go to its tree: at the ends of chunks and sequences as they
// are (--mamba-scheduler-strategy no_buffer), or where they were tracked into slots beside the
// request's own (extra_buffer).
struct StatePoolSettings {
  std::int64_t slots = 0;  // without the one for padding
  bool tracks = false;
  bool overlap = false;
  Tokens kernel_chunk{64};     // of the model's recurrent kernels
  Tokens track_interval{256};  // of decodes

  [[nodiscard]] std::int64_t tracking_slots() const { return tracks ? 1 + (overlap ? 1 : 0) : 0; }
  // Most that a request can need at a time: beside those it holds the state of its node is locked,
  // and one is under way to the tree.
  [[nodiscard]] std::int64_t slots_per_request(bool sharing) const {
    return sharing ? 3 + tracking_slots() : 1;
  }
  [[nodiscard]] Tokens chunk(Tokens page) const { return std::max(kernel_chunk, page); }
  [[nodiscard]] Tokens grid(Tokens page) const;
  [[nodiscard]] Tokens track_grid(Tokens page) const;
};

// By the names of --schedule-policy, --radix-eviction-policy and --retraction-policy; nullopt for
// names that have no rule here ("random" is none: its order is drawn).
std::optional<SchedulePolicy> schedule_policy_of(const std::string& name);
std::optional<EvictionPolicy> eviction_policy_of(const std::string& name);
std::optional<RetractionPolicy> retraction_policy_of(const std::string& name);
std::optional<WritePolicy> write_policy_of(const std::string& name);

// What changed from version to version, defaults as of 0.5.23. The releases that brought each
// change stand in scheduler_rules.cpp.
struct SchedulerRules {
  // Intake.
  bool memory_caps_output = true;   // max_new_tokens is cut to what the empty pool can hold
  bool chunk_abort_at_once = true;  // an abort frees a half-prefilled prompt before the next choice
  // Admission.
  bool charges_page = true;               // each request is charged a page on top
  bool needs_page = true;                 // and must have room for it
  bool fixed_need_page = true;            // also one of known length
  bool input_cap_while_chunking = false;  // max_prefill_tokens also with chunked prefill
  bool verdict_before_match = true;       // a spent budget ends the batch before the next lookup
  bool reserves_fixed_outputs = true;     // ignore_eos requests are reserved in full
  bool no_token_needs_work = true;        // batch_is_full after NO_TOKEN only while something runs
  bool chunk_end_aligned = true;          // a first chunk ends at a page, by its end
  bool counts_rows = true;                // free request rows limit a batch
  bool counts_held_rows = true;           // a further chunk has its row already
  bool slots_limit_chunks = false;        // no free slot also stops a pending chunk
  bool preemption_uses_prompt = true;  // a preemptor's need from its prompt, not its last attempt
  bool preempted_always_requeued = true;  // also when the preemptor was not admitted
  bool refreshes_waiting = true;          // arrival-order policies touch waiting prefixes
  bool lpm_by_cut_match = true;           // longest prefix counts at most all but one token
  // Running.
  bool filters_every_step = true;      // finished requests leave the running batch in each choice
  bool mixed_needs_room = true;        // decode rows join a prefill only if their slots are there
  bool pages_by_written = true;        // decode pages from what is written, not prompt + outputs
  bool skips_certain_finishes = true;  // overlap: no decode for who must reach max_new_tokens
  bool last_request_aborted = true;    // the last request that does not fit is aborted
  bool resets_ratio_when_idle = true;  // only without any request, not in each empty step
  bool stop_before_length = true;      // an end token at the limit is reason stop
  bool prefill_only_joins = true;      // requests without output join the running batch
  // Prefix cache.
  bool publishes_outputs = true;     // a finished request publishes its outputs
  bool cuts_outputs = true;          // and they are cut from the prompt
  bool evicts_shortfall = true;      // eviction asks for what is missing, not for the whole need
  bool unified_tree = true;          // times, hits and duplicates as the unified tree has them
  bool sliding_window_pools = true;  // window pools as modelled here
  bool state_trees = true;           // prefix trees over recurrent states, likewise
  bool host_tier = true;             // HiCache as modelled here
  bool disaggregation = true;        // prefill and decode roles as modelled here
};

SchedulerRules rules_for(const Version& version);

struct SchedulerConfig {
  Tokens pool_tokens;  // max_total_num_tokens: usable slots, a multiple of page_size
  Tokens page_size{1};
  Tokens context_length{4096};
  std::int64_t max_running_requests = 256;     // as resolved
  bool allow_auto_truncate = false;            // prompts that are too long are cut
  std::optional<Tokens> chunked_prefill_size;  // absent: chunked prefill is off
  Tokens max_prefill_tokens{16384};
  SchedulePolicy schedule_policy = SchedulePolicy::kFcfs;
  double schedule_conservativeness = 1;
  bool disable_radix_cache = false;
  bool enable_mixed_chunk = false;
  bool disable_overlap_schedule = false;
  EvictionPolicy radix_eviction_policy = EvictionPolicy::kLru;
  Tokens tlru_threshold;
  Tokens tlru_next_prompt_estimate;
  RetractionPolicy retraction_policy = RetractionPolicy::kLength;
  bool enable_priority_scheduling = false;
  bool schedule_low_priority_values_first = false;
  bool disable_priority_preemption = false;
  std::int64_t priority_scheduling_preemption_threshold = 10;
  std::optional<std::int64_t> prefill_max_requests;
  std::optional<std::int64_t> max_queued_requests;
  std::optional<std::int64_t> min_free_slots_delay;
  std::int64_t prefill_decode_interval = 0;
  std::int64_t prefill_decode_interval_min_bs = 0;
  // Sliding-window layers: slots of their pool, and the window as the pools keep it.
  std::optional<Tokens> swa_pool_tokens;
  Tokens sliding_window;
  std::optional<StatePoolSettings> state_pool;
  std::optional<HostTierSettings> host_tier;

  Role role = Role::kMixed;
  // Decode role: request rows beyond max_running_requests, and room kept for each active request.
  std::int64_t extra_rows = 0;
  Tokens num_reserved_decode_tokens{512};
  // A transfer is seen as done so many steps after it began. Absent: when transfer_done() says so.
  std::optional<std::int64_t> transfer_steps;

  // SGLANG_* environment.
  Tokens clip_max_new_tokens_estimation{4096};
  double init_new_token_ratio = 0.7;
  double min_new_token_ratio_factor = 0.14;
  std::int64_t new_token_ratio_decay_steps = 600;
  std::int64_t retract_decode_steps = 20;
  Tokens swa_eviction_interval{128};

  SchedulerRules rules;
  // Per-request detail in plans and outputs (what checkers need). Costs time proportional to the
  // running requests in each step; decisions are the same.
  bool detail = false;
};

// Adds a problem for every setting the engine would refuse, that no pool can have, or that is not
// modelled for its version.
void check(const SchedulerConfig& config, const std::string& source, Problems& problems);

}  // namespace oomcast::sglang
