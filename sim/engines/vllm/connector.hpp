// KV that leaves and enters the pool: vLLM's KV connectors at the boundary between the scheduler
// and whoever moves the bytes (workers, network, host copies).
//
//   const StepPlan& plan = scheduler.schedule();
//   start(plan.transfers);                    // receives, loads, stores, saves; offers with a
//   lease const StepOutput& out = scheduler.complete(report);  // what was over by the end of that
//   step hand_on(out.handoffs);                    // a finished prefill tells the other side its
//   blocks
//
// The scheduler decides what is moved and which blocks wait for it, never how long that takes: the
// caller plays the network. It reports every receive, send and job exactly once, with the output of
// the step during which it ended; a send whose lease ended counts as sent. A receive of
// a request that was aborted meanwhile is reported all the same: its blocks stay until then.
//
// Rules: vLLM 0.33.0, v1/core/sched/scheduler.py, NixlConnector (pull) and OffloadingConnector
// (host tier).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/units.hpp"
#include "sim/engines/scheduling.hpp"

namespace oomcast::vllm {

// --kv-transfer-config, --kv-offloading-size
struct ConnectorConfig {
  enum class Kind { kNixl, kOffloading };
  enum class Role { kProducer, kConsumer, kBoth };
  enum class LoadFailure { kFail, kRecompute };
  enum class Eviction { kLru, kArc };

  Kind kind = Kind::kNixl;
  Role role = Role::kBoth;
  LoadFailure load_failure_policy = LoadFailure::kFail;

  // NixlConnector
  bool host_buffer = false;        // kv_buffer_device cpu: a producer copies its blocks out
  bool bidirectional = false;      // bidirectional_kv_xfer
  Tokens recompute_threshold{64};  // kv_recompute_threshold, with bidirectional

  // OffloadingConnector
  std::int64_t host_chunks = 0;  // capacity of the host tier; a chunk holds one group's blocks
  std::int64_t blocks_per_chunk = 1;
  Eviction eviction_policy = Eviction::kLru;
  std::int64_t store_threshold = 0;  // from 2 on: a chunk is stored at its t-th offer
  bool offload_prompt_only = true;
  Bytes sync_load_budget;  // a step; loads within it run before the step
  Bytes bytes_per_token;   // in each group; weighs loads against that budget
  // 0.14 to 0.20 (offloading_connector.py, request_finished): what a request stored can be loaded
  // once it has ended or is preempted, and its blocks stay until a worker that was told of its end
  // has stored all; a chunk still being written counts as absent.
  bool stores_end_with_request = false;
  // 0.14 and 0.15 (_get_reqs_to_store): a chunk whose last token is not sampled yet when its step
  // is planned, as with asynchronous scheduling, is passed over for good.
  bool skips_unsampled_chunks = false;
};

// A request's kv_transfer_params.
struct KvTransferParams {
  enum class Remote {
    kNone,
    kPrefill,  // do_remote_prefill: its prompt was computed elsewhere and is pulled
    kDecode,   // do_remote_decode: its blocks are kept for somebody who pulls them
  };
  Remote remote = Remote::kNone;
  // With kDecode and a bidirectional connector: the other side holds so many tokens of the prompt.
  std::optional<Tokens> remote_num_tokens;
  std::optional<Tokens> max_load_tokens;     // OffloadingConnector: at most so many from the host
  std::optional<Tokens> max_offload_tokens;  // at most so many to the host
};

using BlockIds = std::vector<std::int32_t>;
using BlockLists = std::vector<BlockIds>;  // one list a KV cache group
using JobId = std::int64_t;                // loads and stores, numbered from 0

// Blocks to fill from the remote side.
struct Receive {
  RequestId id = 0;
  Tokens tokens;
  BlockLists blocks;
};

// Blocks of this step to copy out to the host buffer that others read.
struct Save {
  RequestId id = 0;
  BlockLists blocks;
};

struct LoadJob {
  JobId job = 0;
  RequestId id = 0;
  Tokens tokens;
  std::vector<std::int64_t> chunks;
  BlockIds blocks;
  bool synchronous = false;  // done before the step runs
};

// Issued with the step that computes the blocks, runs at the start of the next one.
struct StoreJob {
  JobId job = 0;
  RequestId id = 0;
  BlockIds blocks;
  std::vector<std::int64_t> chunks;
};

// What a step tells the workers, in order.
struct StepTransfers {
  std::vector<Receive> receives;
  std::vector<RequestId> notifies;  // nothing to pull: the other side may free its blocks
  std::vector<Save> saves;
  // Offered from now on, until fetched or the lease ends; of a host tier with
  // stores_end_with_request: ended, sent when their stores are over.
  std::vector<RequestId> sends;
  std::vector<LoadJob> loads;
  std::vector<StoreJob> stores;
  std::vector<JobId> flushes;  // must be over before the step runs, ascending

  void clear();
};

// What a finished request offers to the other side: tokens computed here and their blocks.
struct Handoff {
  RequestId id = 0;
  Tokens tokens;
  BlockLists blocks;
};

// What the workers report with a step's output.
struct TransferReport {
  struct Received {
    RequestId id = 0;
    bool failed = false;  // all of it, as NIXL reports
    BlockIds bad_blocks;  // or these blocks; needs a single KV cache group
  };
  std::vector<Received> received;
  std::vector<RequestId> sent;
  std::vector<JobId> jobs;  // an asynchronous load that is over is a receive that is over

  void clear();
};

// Blocks and chunks that transfers tie up.
struct TransferCounts {
  std::int64_t remote = 0;   // requests waiting for their KV
  std::int64_t arrived = 0;  // of those, reported and not yet taken up
  Blocks remote_blocks;      // of waiting requests
  std::int64_t held = 0;     // ended requests that keep blocks for a send or an unfinished receive
  Blocks held_blocks;
  Blocks deferred_blocks;      // freed but for a step in flight that may still write them
  Blocks reserved_blocks;      // that prefills under way still need
  std::int64_t host_used = 0;  // chunks
  std::int64_t host_evictable = 0;
  std::int64_t host_writing = 0;
};

}  // namespace oomcast::vllm
