// One live request as the scheduler sees it, and the slots requests live in.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "sim/core/stable_slots.hpp"
#include "sim/engines/sglang/kv_cache.hpp"
#include "sim/engines/sglang/scheduler.hpp"
#include "sim/kv/token_runs.hpp"

namespace oomcast::sglang {

using Slot = std::int32_t;
inline constexpr Slot kNoSlot = -1;
inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

struct Request {
  RequestId id = 0;
  std::uint64_t serial = 0;  // order of add(), never reused; 0: the slot is spare
  std::int64_t priority = 0;
  std::int64_t node_priority = 0;  // what it gives the nodes it inserts
  std::uint64_t tie_order = 0;
  std::uint64_t routing_key = 0;
  bool ignore_eos = false;

  kv::TokenRuns content;  // prompt and all the output there can be
  std::int64_t prompt = 0;
  std::int64_t max_output = 0;  // as cut at intake
  std::int64_t stop_after = kNever;

  KvRow kv;
  std::int64_t known = 0;     // tokens that were known when it last was made ready
  std::int64_t computed = 0;  // end of its latest extend
  std::int64_t last_extend = 0;
  std::int64_t matched = 0;        // prefix hit for ordering, at most all but one token
  std::int64_t middle_chunks = 0;  // chunks in flight that yield no token
  std::int64_t extends = 0;

  bool waiting = false;
  bool aborting = false;   // finishes as aborted with its next token
  bool finished = false;   // KV is released; may still stand in a batch
  bool retracted = false;  // results in flight are dropped
  bool resumed = false;    // was retracted or preempted before

  bool handshaken = true;  // prefill and decode roles
  bool transferred = false;
  std::int64_t transfer_began = 0;  // step

  std::int64_t queued_at = 0;     // place in time of its latest queue entry
  std::int64_t prefill_seen = 0;  // tokens the engine had prefilled by then
  std::int64_t batch_step = -1;   // step of the latest prefill batch that holds it

  // Running batch: place, and counters that run on by themselves (RunningBatch).
  bool running = false;
  bool counting = false;
  Slot next = kNoSlot;
  Slot previous = kNoSlot;
  std::uint64_t join = 0;          // number of its joining, never reused
  std::uint64_t order = 0;         // grows along the batch
  std::uint64_t former_order = 0;  // for results of launches up to `reordered_at`
  std::int64_t reordered_at = -1;
  std::int64_t joined = 0;   // decode launches before it joined
  std::int64_t output = 0;   // tokens appended when counting began
  std::int64_t decodes = 0;  // launches it took part in, likewise
};

class RequestSlots : public StableSlots<Request, Slot> {
 public:
  // A spare request has no serial: late results do not find it.
  void give_back(Slot slot) {
    (*this)[slot].serial = 0;
    StableSlots::give_back(slot);
  }
};

}  // namespace oomcast::sglang
