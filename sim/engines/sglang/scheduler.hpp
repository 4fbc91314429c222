// SGLang's scheduler with its KV slots and prefix tree, decision for decision.
//
//   Scheduler scheduler(config);                   // ConfigError if the settings cannot work
//   scheduler.add(request); scheduler.abort(id);   // between rounds, in arrival order
//   const StepPlan& plan = scheduler.schedule();   // one batch enters the pipeline (may be empty)
//   if (scheduler.batches_in_flight() == scheduler.depth()) {
//     const StepOutput& out = scheduler.complete();  // results of the oldest batch
//   }
//
// A round, one turn of SGLang's event loop, is schedule() and then, once the pipeline is full,
// complete(). With the overlap schedule (depth 2) the results of a batch are applied after the next
// one is chosen; without it (depth 1) at once. While the state is steady, advance_steady(n)
// performs n rounds at once with exactly the state that n single rounds leave.
//
//   if (const std::int64_t n = scheduler.steady_steps(); n > 0) scheduler.advance_steady(n);
//
// Cost: a round costs what changes (admissions, prefills, finishes, evictions), not what runs,
// nor the length of the trace. Requests live in slots that are reused.
//
// References returned stay valid until the next call of the same kind.
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
#include "sim/engines/sglang/scheduler_config.hpp"

namespace oomcast::sglang {

// One token of content.
struct ContentToken {
  std::uint64_t segment = 0;
  std::int64_t offset = 0;
};

struct RequestSpec {
  RequestId id = 0;                      // unique among the requests that are queued or running
  std::optional<std::int64_t> priority;  // absent: the least preferred
  std::uint64_t tie_order = 0;           // hrrn: orders equals; the engine's is its id as text
  std::uint64_t routing_key = 0;         // 0: none; equal keys order by number
  Tokens prompt_len;
  // Empty: content nobody shares. Else lengths sum to at least prompt_len (the rest is cut) or, if
  // they sum to less, unshared content follows.
  std::span<const ContentSegment> prompt;
  Tokens max_output;
  // The output ends with an end token after so many tokens, at least one, unless max_output or
  // ignore_eos say otherwise. What the scheduler plans with is max_output.
  std::optional<Tokens> stop_after;
  bool ignore_eos = false;
  // Segment whose token k is the k-th output token, so that later prompts can contain the output.
  // Absent: output nobody shares.
  std::optional<std::uint64_t> output_content;
  // Output continues the last segment of `prompt` instead. Ignored where unshared content follows.
  bool output_continues_prompt = false;
  // What the end token is, if it is not the output content's own.
  std::optional<ContentToken> end_token;
  // What the single token is that stands for a prompt that is too long.
  std::optional<ContentToken> stub_token;
  // Prefill and decode roles: the two servers have not agreed yet; see handshake_done().
  bool awaits_handshake = false;
};

// What became of add(). Refused requests leave no trace in the scheduler.
enum class Added {
  kQueued,
  kQueuedToAbort,  // the prompt is too long: it runs as one token and finishes as aborted
  kQueueFull,      // rejected; it is among the aborted of the next plan
  kTooLong,        // prefill and decode roles: likewise
  kEmptyPrompt,    // refused by the engine's front end
  kNoOutput,       // max_output < 0, likewise
  kDuplicateId,    // a live request has this id
};

enum class Kind { kIdle, kPrefill, kDecode, kMixed };
enum class FinishReason { kLength, kStop, kAbort };

// A row of a prefill, in batch order.
struct ExtendedRequest {
  RequestId id = 0;
  Tokens prefix;  // in place: a hit, plus earlier chunks
  Tokens tokens;  // computed now
};

struct FinishedRequest {
  RequestId id = 0;
  FinishReason reason = FinishReason::kLength;
  Tokens output;
};

// Slots of a pool: free + cached + used == total.
struct PoolCounts {
  Tokens total;
  Tokens free;
  Tokens cached;  // held by the prefix tree and evictable
  Tokens used;
};

// Slots of the pool of recurrent states: likewise.
struct StateCounts {
  std::int64_t total = 0;
  std::int64_t free = 0;
  std::int64_t cached = 0;
  std::int64_t used = 0;
};

// The engine stops with an error; nothing is scheduled any more.
enum class EngineError {
  kNone,
  kPrefillOutOfMemory,  // "Prefill out of memory": admitted more than the pool holds
  kDecodeOutOfMemory,   // "Decode out of memory"
  kRetractionFailed,    // up to 0.5.9: the last request does not fit
};

// Prefill and decode roles: what happened to requests outside of batches, in order.
struct TransferPlan {
  std::vector<RequestId> bootstrapped;    // prefill: to the queue
  std::vector<RequestId> resumed;         // decode: retracted ones that have slots again
  std::vector<RequestId> preallocated;    // decode: have slots, their KV may be sent
  std::vector<RequestId> arrived;         // decode: KV and first token are here
  std::vector<RequestId> joined;          // decode: entered the running batch
  std::vector<FinishedRequest> finished;  // decode: ended as they would have joined
};

// Host tier: a copy of KV between card and host under way, of one job. The caller moves it and
// calls copy_done().
struct HostCopy {
  std::int64_t job = 0;
  Tokens tokens;
};
struct HostPlan {
  std::optional<HostCopy> write;  // to the host, queued since the last output; begins at once
  Tokens awaited;  // written back for want of slots: the step begins when that is over
  std::optional<HostCopy> load;  // from the host: the step needs it layer by layer
};

struct StepPlan : StepTotals {
  Kind kind = Kind::kIdle;

  std::vector<ExtendedRequest> extended;
  std::vector<Admission> admitted;   // first chunks, in order
  std::vector<RequestId> retracted;  // back to the queue for want of slots, as queued
  std::vector<RequestId> preempted;  // back to the queue for a better priority
  std::vector<RequestId> aborted;    // dropped without ever finishing, since the last plan
  std::vector<RequestId> decoded;    // with SchedulerConfig::detail: decode rows in batch order
  std::optional<RequestId> chunked;  // its prompt is unfinished after this choice
  TransferPlan transfers;
  EngineError error = EngineError::kNone;
  HostPlan host;

  PoolCounts slots;         // while the step executes
  PoolCounts window_slots;  // likewise; zeros without a window pool
  StateCounts state_slots;  // likewise; zeros without recurrent layers
};

struct StepOutput {
  std::int64_t step = 0;                  // the plan's whose output this is
  Tokens sampled;                         // tokens appended
  std::vector<RequestId> first_token;     // got their first output token
  std::vector<FinishedRequest> finished;  // in batch order
  std::vector<RequestId> sending;  // prefill role: prompts done, the rest of their KV is on its way
  // Host tier: KV to the host, once the steps launched so far are over.
  std::optional<HostCopy> write;
};

using SteadyJump = SteadyRounds<PoolCounts>;

// Nothing runs, nothing is in flight and the latest rounds let nobody in: without a new arrival, an
// abort or the end of a copy the engine waits for ever. `head` stands first, or is a half-prefilled
// prompt.
struct Stall {
  RequestId head = 0;
  Tokens available;  // free and evictable slots
};

class Scheduler {
 public:
  // Throws ConfigError naming every setting that cannot work.
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  Added add(const RequestSpec& request);
  // Who waits is dropped at once (and told of in the next plan), who runs finishes with its next
  // token.
  Abort abort(RequestId id);

  // Prefill and decode roles: the two servers agreed on the request; all of its KV is over. Whether
  // a live request had this id.
  bool handshake_done(RequestId id);
  bool transfer_done(RequestId id);

  // Host tier: the copy is over. Whether it was under way.
  bool copy_done(std::int64_t job);

  const StepPlan& schedule();
  // Needs batches_in_flight() > 0.
  const StepOutput& complete();

  [[nodiscard]] std::int64_t depth() const;
  [[nodiscard]] std::int64_t batches_in_flight() const;
  [[nodiscard]] bool work_in_flight() const;  // a batch in flight has rows
  [[nodiscard]] bool idle() const;            // no live request and no work in flight

  // How many further rounds are certain to be alike: the same decodes, no admission, prefill,
  // eviction, retraction or finish. 0 while the pipeline is not full to depth() - 1. `limit` bounds
  // the search.
  [[nodiscard]] std::int64_t steady_steps(
      std::int64_t limit = std::numeric_limits<std::int64_t>::max()) const;
  // Needs steady_steps() > 0.
  [[nodiscard]] SteadyShape steady_shape() const;
  // 1 <= n <= steady_steps(). Leaves the state that n single rounds leave.
  const SteadyJump& advance_steady(std::int64_t n);

  [[nodiscard]] PoolCounts slots() const;
  [[nodiscard]] PoolCounts window_slots() const;
  [[nodiscard]] StateCounts state_slots() const;
  [[nodiscard]] Tokens host_used() const;      // slots of the host tier
  [[nodiscard]] std::int64_t running() const;  // unfinished requests of the running batch
  [[nodiscard]] std::int64_t waiting() const;
  // Requests outside of batches: decode role, without slots, retracted, and in transfer; prefill
  // role, before the handshake, and in transfer.
  [[nodiscard]] std::int64_t asking() const;
  [[nodiscard]] std::int64_t parked() const;
  [[nodiscard]] std::int64_t transferring() const;
  [[nodiscard]] double new_token_ratio() const;
  [[nodiscard]] std::int64_t preemptions() const;    // and retractions, since the start
  [[nodiscard]] Tokens prefix_hit_tokens() const;    // of all admissions
  [[nodiscard]] std::optional<Stall> stall() const;  // meaningful after schedule()

  // Digest of the complete state. Proportional to the state; for tests.
  [[nodiscard]] std::uint64_t state_digest() const;
  // Aborts if a slot is lost, counted twice, or in two places, or a lock is left. Proportional to
  // the state; for tests.
  void check_conservation() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oomcast::sglang
