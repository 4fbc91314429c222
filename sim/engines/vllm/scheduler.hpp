// vLLM's V1 scheduler with its KV block pool and prefix cache, decision for decision.
//
//   Scheduler scheduler(config);                   // ConfigError if the settings cannot work
//   scheduler.add(request); scheduler.abort(id);   // between steps, in arrival order
//   const StepPlan& plan = scheduler.schedule();   // one batch enters the pipeline (may be empty)
//   if (scheduler.batches_in_flight() == scheduler.depth()) {
//     const StepOutput& out = scheduler.complete();  // output of the oldest batch
//   }
//
// With a KV connector (connector.hpp) plans and outputs also say what is moved, and complete() is
// told what has been.
//
// A "round" is schedule() and then, once the pipeline is full, complete(). While the state is
// steady, advance_steady(n) performs n rounds at once with exactly the state that n single rounds
// leave: block ids, free-list order, hashes, counters.
//
//   if (const std::int64_t n = scheduler.steady_steps(); n > 0) scheduler.advance_steady(n);
//
// Cost: a round costs what changes (admissions, prefills, block boundaries, finishes), not what
// runs; plans and outputs are reused, so nothing is allocated per step. Requests live in slots that
// are reused, so memory follows the live requests, never the length of the trace.
//
// Sampled tokens follow from the request: a request ends after max_output tokens or when prompt and
// output reach max_model_len. References returned stay valid until the next call of the same kind.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/content.hpp"
#include "sim/core/units.hpp"
#include "sim/engines/scheduling.hpp"
#include "sim/engines/vllm/connector.hpp"
#include "sim/engines/vllm/scheduler_config.hpp"

namespace oomcast::vllm {

struct RequestSpec {
  RequestId id = 0;             // unique among the requests that are queued or running
  double arrival_time = 0;      // orders equal priorities, nothing else
  std::int64_t priority = 0;    // smaller is more urgent
  std::uint64_t tie_order = 0;  // orders equal (priority, arrival_time); the engine's is id as text
  Tokens prompt_len;
  // Empty: content nobody shares, the fast path. Else lengths sum to at least prompt_len (the rest
  // is cut) or, if they sum to less, unshared content follows.
  std::span<const ContentSegment> prompt;
  Tokens max_output;  // >= 1
  // Segment whose token k is the k-th output token, so that later prompts can contain the output.
  // Absent: output nobody shares.
  std::optional<std::uint64_t> output_content;
  // Output continues the last segment of `prompt` instead (a conversation that a later prompt holds
  // as one growing segment). Ignored where unshared content follows that segment.
  bool output_continues_prompt = false;
  // Speculative decoding: this request's own tables instead of the config's.
  std::span<const std::int32_t> accept;
  std::span<const std::int32_t> drafts;
  KvTransferParams transfer;  // meant for the connector; without one it is passed over
};

// What became of add(). Everything but kQueued leaves no trace in the scheduler.
enum class Added {
  kQueued,
  kEmptyPrompt,    // refused by the engine's front end
  kPromptTooLong,  // prompt_len >= max_model_len, likewise
  kNoOutput,       // max_output < 1, likewise
  kDuplicateId,    // a live request has this id
};

// Blocks of the pool, the null block excluded: free + used == total.
struct PoolCounts {
  Blocks total;
  Blocks free;    // available now; cached ones included
  Blocks cached;  // of the free: still found by prefix lookups
  Blocks used;
};

// Per-request detail, only with SchedulerConfig::detail, in scheduling order.
struct ScheduledRequest {
  enum class Kind { kNew, kResumed, kContinued };

  RequestId id = 0;
  Kind kind = Kind::kContinued;
  std::int64_t tokens = 0;    // this step, drafts included
  std::int64_t computed = 0;  // before this step
  std::int64_t drafts = 0;
  std::int64_t hit = 0;  // new and resumed
  // Blocks in StepPlan::detail_blocks from here, group after group; group g has
  // StepPlan::detail_group_blocks[first_group + g] of them. The whole table (0 = null block) of new
  // and resumed requests, the blocks appended this step of the others.
  std::size_t first_block = 0;
  std::size_t first_group = 0;
};

struct StepPlan : StepTotals {
  Tokens decode_tokens;  // decode_requests plus drafts

  std::vector<Admission> admitted;   // first time and again, in order
  std::vector<RequestId> preempted;  // while scheduling this step, in order

  std::vector<ScheduledRequest> detail;
  std::vector<std::int32_t> detail_blocks;
  std::vector<std::int32_t> detail_group_blocks;

  StepTransfers transfers;  // with a connector

  PoolCounts blocks;  // while the step executes
};

struct StepOutput {
  std::int64_t step = 0;               // the plan's whose output this is
  Tokens sampled;                      // tokens appended, after trimming at a stop
  std::vector<RequestId> first_token;  // got their first output token
  std::vector<RequestId> finished;     // ended, in batch order; their blocks are freed
  std::vector<std::pair<RequestId, std::int32_t>> detail_sampled;  // with SchedulerConfig::detail
  std::vector<Handoff> handoffs;  // of finished requests, which hold their blocks until sent
  std::vector<RequestId> failed;  // ended because their KV did not arrive
};

struct SteadyJump : SteadyRounds<PoolCounts> {
  // Of the batch that was in flight: see StepOutput. They came with the first round.
  std::span<const RequestId> first_token;
  std::span<const RequestId> finished;
};

// Nothing runs, nothing is in flight, and the head of the queue cannot be admitted: without a new
// arrival or an abort the engine waits for ever.
struct Stall {
  RequestId head = 0;
  Blocks needed;  // by the head, at least
  Blocks available;
};

// What follows from the settings.
struct Derived {
  Tokens scheduler_block_size;  // alignment of hits
  Tokens hash_block_size;
  std::int64_t pipeline_depth = 1;
  std::int64_t num_lookahead_tokens = 0;  // slots taken past the tokens of a step
  std::int64_t num_hash_lookahead_tokens = 0;
  bool eagle_block_drop = false;
  std::int64_t draft_slots = 0;       // input tokens that drafting costs a request
  bool defer_block_free = false;      // blocks a step in flight may write are freed with its output
  bool requires_kv_delivery = false;  // output in flight of a preempted request is dropped
  std::int64_t spec_decode_step_blocks = 0;  // kept free beside transfers for one draft step
};

class Scheduler {
 public:
  // Throws ConfigError naming every setting that cannot work.
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  Added add(const RequestSpec& request);
  // Output in flight is dropped, blocks are freed now.
  Abort abort(RequestId id);

  const StepPlan& schedule();
  // Needs batches_in_flight() > 0. The report is of transfers that were over by the end of that
  // batch; a connector is needed for one that is not empty.
  const StepOutput& complete(const TransferReport& report = {});
  // Drops empty batches from the pipeline; the engine does so when it falls idle.
  void drop_empty_batches();

  [[nodiscard]] Derived derived() const;
  [[nodiscard]] std::int64_t depth() const;
  [[nodiscard]] std::int64_t batches_in_flight() const;
  [[nodiscard]] bool work_in_flight() const;  // a batch in flight scheduled something
  // No live request, no work in flight, nothing held, no job to be reported.
  [[nodiscard]] bool idle() const;

  // How many further rounds are certain to be alike: the same decodes, one token each, no
  // admission, prefill or preemption. With a batch in flight, whose results come with the first,
  // the last can be the last of some requests. 0 while the pipeline is not full to depth() - 1.
  // `limit` bounds the search.
  [[nodiscard]] std::int64_t steady_steps(
      std::int64_t limit = std::numeric_limits<std::int64_t>::max()) const;
  // Needs steady_steps() > 0.
  [[nodiscard]] SteadyShape steady_shape() const;
  // 1 <= n <= steady_steps().
  const SteadyJump& advance_steady(std::int64_t n);

  [[nodiscard]] PoolCounts blocks() const;
  [[nodiscard]] std::int64_t running() const;
  [[nodiscard]] std::int64_t waiting() const;
  [[nodiscard]] std::int64_t preemptions() const;    // since the start
  [[nodiscard]] Tokens prefix_hit_tokens() const;    // of all admissions, what arrived included
  [[nodiscard]] TransferCounts transfers() const;    // proportional to what waits and is held
  [[nodiscard]] std::int64_t host_chunks() const;    // of a host tier, in use
  [[nodiscard]] std::optional<Stall> stall() const;  // meaningful after schedule()

  // Digest of the complete state: requests, queues, tables, free-list order, hashes. Proportional
  // to the pool; for tests.
  [[nodiscard]] std::uint64_t state_digest() const;
  // Aborts if a block is lost, counted twice, or in two places. Proportional to the pool; for
  // tests.
  void check_conservation() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oomcast::vllm
