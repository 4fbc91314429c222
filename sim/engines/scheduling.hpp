// What the schedulers of all engines say of a round, whatever their pools and queues are like.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/core/units.hpp"

namespace oomcast {

using RequestId = std::uint64_t;

// What becomes of a request that its client gave up.
struct Abort {
  bool known = false;  // it was live
  // Its output, if the engine let go of it at once; else it ends with results to come.
  std::optional<Tokens> output = std::nullopt;
};

struct Admission {
  RequestId id = 0;
  bool resumed = false;  // came back after it had lost its place
  Tokens hit;            // prefix-cache hit
};

// One scheduled batch in numbers. Decodes compute one token, plus drafts, after the prompt; all
// others are prefills: prompts, chunks of them, and what is computed again.
struct StepTotals {
  std::int64_t step = 0;  // calls of schedule() before this one, steady rounds included
  Tokens tokens;          // scheduled in total, drafts included
  std::int64_t requests = 0;
  std::int64_t sampled_rows = 0;       // rows with logits: one a request plus its drafts
  std::int64_t sampling_requests = 0;  // requests that will yield a token (no mid-prefill chunk)
  std::int64_t decode_requests = 0;
  Tokens decode_context;  // sum over decodes of cached + new tokens
  std::int64_t prefill_requests = 0;
  Tokens prefill_tokens;
  std::int64_t prefill_attention = 0;  // sum over prefills of n*c + n(n+1)/2, n new over c cached

  // After schedule(), before any output: while the step executes.
  std::int64_t running = 0;
  std::int64_t waiting = 0;
};

// The next round of a steady state: decodes and nothing else.
struct SteadyShape {
  std::int64_t decode_requests = 0;
  Tokens first_context;        // StepTotals::decode_context it will have
  bool ends_requests = false;  // results that come with the round, of a batch in flight, do
};

// n rounds at once. Every round runs the same decodes, one token each, and nothing else. Results of
// a batch in flight before them come with the first. In round i (from 0) the context is
// first_context + i * decode_requests.
template <typename PoolCounts>
struct SteadyRounds {
  std::int64_t first_step = 0;  // StepTotals::step of round 0
  std::int64_t steps = 0;
  std::int64_t decode_requests = 0;
  Tokens first_context;          // StepTotals::decode_context of round 0
  PoolCounts first;              // the pool in the first round
  PoolCounts second;             // in the second, after what those results gave back
  PoolCounts last;               // and in the last
  std::int64_t last_growth = 0;  // the latest round, from 0, in which requests took from the pool
};

}  // namespace oomcast
