// TensorRT-LLM's scheduling (PyTorch backend, C++ schedulers and KV manager): who may run, with how
// many tokens, on which blocks. Rules: facts page TensorRT-LLM 5; no recording exists.
//
//   Scheduler scheduler(config);                   // ConfigError if the settings cannot work
//   scheduler.add(request);                        // between rounds, in arrival order
//   const StepPlan& plan = scheduler.schedule();   // one batch enters the pipeline (may be empty)
//   if (scheduler.batches_in_flight() == scheduler.depth()) {
//     const StepOutput& out = scheduler.complete();  // output of the oldest batch
//   }
//
// With the overlap scheduler (depth 2) results are applied after the next batch is launched; who
// must end with the result in flight is not scheduled again. While the state is steady,
// advance_steady(n) leaves the state that n rounds leave. A round costs what is active, and memory
// follows the live requests. References returned stay valid until the next call of the same kind.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/content.hpp"
#include "sim/core/error.hpp"
#include "sim/core/units.hpp"
#include "sim/engines/scheduling.hpp"

namespace oomcast::trtllm {

enum class CapacityPolicy { kGuaranteedNoEvict, kMaxUtilization, kStaticBatch };
enum class ChunkingPolicy { kFirstComeFirstServed, kEqualProgress };

struct SchedulerConfig {
  Blocks pool_blocks;
  Tokens tokens_per_block{32};
  Tokens max_seq_len{4096};  // prompt and output together
  std::int64_t max_batch_size = 2048;
  Tokens max_num_tokens{8192};  // of one step
  CapacityPolicy capacity = CapacityPolicy::kGuaranteedNoEvict;
  bool chunked_prefill = false;
  ChunkingPolicy chunking = ChunkingPolicy::kFirstComeFirstServed;
  bool block_reuse = true;
  bool overlap = true;
  Blocks host_blocks;  // of the secondary pool that evicted blocks go to; 0: none
};
// Adds a problem for every setting that no pool or engine can have.
void check(const SchedulerConfig& config, const std::string& source, Problems& problems);

struct RequestSpec {
  RequestId id = 0;  // unique among those that wait or run
  Tokens prompt_len;
  // Empty: content nobody shares. Else lengths sum to at least prompt_len.
  std::span<const ContentSegment> prompt;
  bool output_continues_prompt = false;  // the output goes on in the last segment
  Tokens max_output;                     // >= 1; cut at max_seq_len
};

// What became of add(). Everything but kQueued leaves no trace.
enum class Added { kQueued, kEmptyPrompt, kPromptTooLong, kNoOutput };

// Blocks of the pool: free + cached + used == total.
struct PoolCounts {
  Blocks total;
  Blocks free;    // without content that can be found
  Blocks cached;  // held by nobody, still found by later prompts
  Blocks used;
};

// Blocks copied between the pools for a step, which waits for them, and those on the host then.
struct HostTraffic {
  Blocks onboarded;
  Blocks offloaded;
  Blocks used;
};

struct StepPlan : StepTotals {
  std::vector<Admission> admitted;  // got their blocks, first time and again, in order
  std::vector<RequestId> paused;    // lost their blocks, keep their place
  PoolCounts blocks;                // while the step executes
  HostTraffic host;
};

struct FinishedRequest {
  RequestId id = 0;
  Tokens output;
  bool aborted = false;
};

struct StepOutput {
  std::vector<RequestId> first_token;
  std::vector<FinishedRequest> finished;  // in batch order
};

using SteadyJump = SteadyRounds<PoolCounts>;

class Scheduler {
 public:
  // Throws ConfigError naming every setting that cannot work.
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  Added add(const RequestSpec& request);
  // Blocks are freed now, or with the last result in flight.
  Abort abort(RequestId id);
  const StepPlan& schedule();
  // Needs batches_in_flight() > 0.
  const StepOutput& complete();
  // Empty batches leave the pipeline, as the engine has none when it is idle.
  void drop_empty_batches();

  [[nodiscard]] std::int64_t depth() const;
  [[nodiscard]] std::int64_t batches_in_flight() const;
  [[nodiscard]] bool work_in_flight() const;
  [[nodiscard]] bool idle() const;
  // After a round without a batch and with nothing in flight: without an arrival nothing will ever
  // run.
  [[nodiscard]] bool stalled() const;

  // Further rounds that are certain to be alike: the same generations, nobody new, nobody ends.
  [[nodiscard]] std::int64_t steady_steps() const;
  [[nodiscard]] SteadyShape steady_shape() const;
  // 1 <= n <= steady_steps().
  const SteadyJump& advance_steady(std::int64_t n);

  [[nodiscard]] PoolCounts blocks() const;
  [[nodiscard]] std::int64_t running() const;  // hold blocks
  [[nodiscard]] std::int64_t waiting() const;
  [[nodiscard]] std::int64_t pauses() const;
  [[nodiscard]] Tokens prefix_hit_tokens() const;

  // Digest of requests, tables and the order of free blocks; for tests.
  [[nodiscard]] std::uint64_t state_digest() const;
  // Aborts if a block is lost or counted twice; for tests.
  void check_conservation() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oomcast::trtllm
