// One live request as the scheduler sees it. Requests live in slots that are reused; nothing here
// is allocated anew once a slot's buffers have grown to what its requests need.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "sim/core/stable_slots.hpp"
#include "sim/engines/vllm/scheduler.hpp"
#include "sim/kv/block_hash.hpp"
#include "sim/kv/block_pool.hpp"
#include "sim/kv/span_pool.hpp"

namespace oomcast::vllm {

using Slot = std::int32_t;
inline constexpr Slot kNoSlot = -1;

// A request's block table in one KV cache group.
struct GroupTable {
  std::vector<kv::BlockId> blocks;
  kv::SpanPool::Table spans;  // in place of `blocks` where KvManager keeps spans
  std::int64_t cached = 0;    // leading blocks that need no hashing any more

  // A hit that ends inside a block, to be copied before it is written. -1: none.
  std::int64_t partial_index = -1;
  kv::BlockId partial_source = kv::kNullBlock;

  // Mamba in mode align.
  std::int64_t last_state = -1;  // block that held the state before the latest allocation
  std::int64_t retired = 0;      // leading blocks whose states are given up
  bool allocated = false;        // has its own state blocks

  void clear() {
    blocks.clear();
    spans.clear();
    cached = 0;
    partial_index = -1;
    last_state = -1;
    retired = 0;
    allocated = false;
  }
};

struct Request {
  // kRemote: blocks are allocated and being filled by a connector. kEnded: it only keeps blocks.
  enum class Status : std::uint8_t { kWaiting, kPreempted, kRunning, kRemote, kEnded };
  // How far fast-forward keeps this request's counters (see scheduler_lane.hpp).
  enum class Lane : std::uint8_t { kNone, kMember, kDraining };

  RequestId id = 0;
  std::uint64_t serial = 0;  // order of add(), never reused
  std::int64_t priority = 0;
  double arrival_time = 0;
  std::uint64_t tie_order = 0;

  std::int64_t prompt_len = 0;
  std::int64_t max_output = 0;
  std::int64_t output = 0;           // tokens appended so far
  std::int64_t computed = 0;         // num_computed_tokens, tokens in flight included
  std::int64_t placeholders = 0;     // num_output_placeholders
  std::int64_t in_flight = 0;        // num_in_flight_tokens
  std::int64_t stale = 0;            // of those, scheduled before a preemption
  std::int64_t drafts = 0;           // len(spec_token_ids)
  std::int64_t eligible_step = 0;    // next_decode_eligible_step
  std::int64_t shared_boundary = 0;  // shared_prefix_boundary
  bool prefill_chunk = false;        // is_prefill_chunk
  bool waits_for_kv = false;         // is in the queue of those whose KV is on the way or here
  Status status = Status::kWaiting;

  // With a connector.
  KvTransferParams transfer;
  bool transfer_asked = false;  // its one remote transfer was asked for
  bool arrived = false;         // kRemote: reported, to be taken up
  bool load_failed = false;     // of what was reported
  bool was_preempted = false;   // comes back as a resumed request
  bool drops_stale = false;     // `stale` tokens are dropped, nobody waits for them
  std::int64_t last_batch = 0;  // number of the latest batch with it

  // Running list, and place in it: `order` grows along the list. Waiting list of fcfs alike.
  Slot next = kNoSlot;
  Slot previous = kNoSlot;
  std::uint64_t order = 0;

  Lane lane = Lane::kNone;
  std::int64_t lane_join = 0;    // first step that schedules it in the lane
  std::int64_t lane_offset = 0;  // computed before step s = s + lane_offset
  bool lane_indexable = false;   // fills blocks that others can hit

  // Content. The hashes of the first `indexable` blocks of the hash size can be met by others; the
  // rest is known to this request alone and is not indexed unless the request is preempted.
  kv::HashChain chain;
  std::int64_t indexable = 0;

  std::vector<std::int32_t> accept;
  std::vector<std::int32_t> draft_counts;
  boost::container::small_vector<GroupTable, 1> groups;

  [[nodiscard]] std::int64_t known() const { return prompt_len + output; }  // num_tokens
};

inline constexpr std::int64_t kAllIndexable = std::numeric_limits<std::int64_t>::max();

using RequestSlots = StableSlots<Request, Slot>;

}  // namespace oomcast::vllm
