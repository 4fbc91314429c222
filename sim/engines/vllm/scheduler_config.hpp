// Settings of vLLM's V1 scheduler under the engine's own names, and what differs between its
// versions, as data.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/units.hpp"
#include "sim/core/version.hpp"
#include "sim/engines/vllm/connector.hpp"

namespace oomcast::vllm {

// One KV cache group: layers that share a block table.
struct KvGroup {
  enum class Type { kFull, kSlidingWindow, kChunkedLocal, kMamba };
  enum class MambaMode { kNone, kAlign };

  Type type = Type::kFull;
  Tokens block_size{16};
  Tokens window;  // sliding window, or attention chunk of kChunkedLocal
  MambaMode mamba_mode = MambaMode::kNone;
  std::int64_t speculative_blocks = 0;  // kMamba: state blocks kept for draft tokens
  bool eagle = false;                   // holds the drafter's layers

  friend bool operator==(const KvGroup&, const KvGroup&) = default;
};

struct SpecDecode {
  enum class Method { kNone, kNgram, kEagle, kDraftModel };

  Method method = Method::kNone;
  std::int64_t num_speculative_tokens = 0;
  // Drafts accepted, by the request's number of output tokens modulo the table's size; empty: 0.
  std::vector<std::int32_t> accept;
  // Drafts proposed, likewise, when the drafter's own count varies (ngram); empty: all.
  std::vector<std::int32_t> drafts;
  bool lookahead_block_hashes = true;  // versions that have them: false = drop the last hit block
};

// What changed from version to version. `since` in scheduler_rules.cpp.
struct SchedulerRules {
  bool unhashed_freed_first = true;           // freed blocks without a hash go to the front
  bool uncached_pool_freed_first = true;      // the same with prefix caching off
  bool full_sequence_check = true;            // scheduler_reserve_full_isl exists
  bool admission_cap = true;                  // that check caps windowed groups
  bool admission_lookahead = true;            // lookahead slots also on admission
  bool window_freed_by_processed = true;      // in-flight tokens delay freeing outside the window
  bool threshold_spares_lone_request = true;  // long_prefill_token_threshold needs two requests
  bool victim_index_by_position = true;       // priority: any earlier victim moves the scan back
  bool self_victim_continues = true;          // priority: a self-preempted request ends no scan
  bool preemption_resets_placeholders = true;
  bool stale_output_delays_resume = true;  // resume only after output in flight arrived
  bool trim_rolls_back_computed = true;    // tokens past a stop leave num_computed_tokens
  bool output_caches_to_processed = true;  // blocks hashed on output: computed - in flight
  bool lookahead_hashes = true;            // eagle: block hashes cover the next token
  bool pads_spec_decode = true;            // a waiting decode is padded to 1 + K tokens
  bool draft_slots_per_request = true;     // draft slots cost input budget, request by request
  bool watermark = true;
  bool prefill_interval = true;
  bool active_seqs_limit = true;
  bool transfers_leave_reserve = true;    // connectors: what prefills under way still need
  bool transfers_queue_first = true;      // else they keep their place among those waiting
  bool sparse_hashing = true;             // blocks no aligned hit can use stay unhashed
  bool aligned_hashing = true;            // hybrid: only whole aligned segments are hashed
  bool eagle_verified_once = true;        // hybrid hits: the eagle drop once per candidate
  bool eagle_aligned_after_drop = true;   // windowed hits: alignment counts after the drop
  bool mamba_fine_hits = true;            // states inside a block, shared-prefix junctions
  bool mamba_speculative_margin = false;  // states freed as if all drafts were rejected
  bool model_runner_v2 = true;            // default runner: async pipeline stages space decodes
};

SchedulerRules rules_for(const Version& version);

struct SchedulerConfig {
  enum class Policy { kFcfs, kPriority };

  std::int64_t max_num_seqs = 256;
  std::optional<std::int64_t> max_num_active_seqs;
  Tokens max_num_batched_tokens{2048};
  std::optional<Tokens> max_num_scheduled_tokens;
  Tokens max_model_len{4096};
  Blocks num_gpu_blocks{1024};  // block 0, the null block, included
  std::vector<KvGroup> groups{KvGroup{}};
  std::optional<Tokens> prefix_match_unit;  // hash block size; absent: gcd of the groups
  std::optional<Tokens> prefix_cache_retention_interval;  // absent: dense, 0: latest boundary only
  bool enable_prefix_caching = true;
  bool enable_chunked_prefill = true;
  bool scheduler_reserve_full_isl = true;
  Tokens long_prefill_token_threshold;
  bool long_prefill_token_threshold_adaptive = false;
  Policy policy = Policy::kFcfs;
  bool async_scheduling = false;
  std::int64_t pipeline_parallel_size = 1;
  double watermark = 0;
  std::int64_t prefill_schedule_interval = 1;
  SpecDecode spec;
  std::optional<ConnectorConfig> connector;
  SchedulerRules rules;
  // Per-request detail in plans and outputs (what checkers need). Costs time proportional to the
  // running requests in each step and turns fast-forward off; decisions are the same.
  bool detail = false;
};

// Adds a problem for every setting the engine would refuse or that no pool can have.
void check(const SchedulerConfig& config, const std::string& source, Problems& problems);

// Batches whose output is not yet known when the next one is scheduled, plus one.
std::int64_t pipeline_depth(const SchedulerConfig& config);

}  // namespace oomcast::vllm
