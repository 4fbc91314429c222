// The memory of one rank while it serves: its step memory, peaks and timeline, fed with the shape
// of each step.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "sim/engines/rank_state.hpp"
#include "sim/run/record.hpp"
#include "sim/run/step_memory.hpp"
#include "sim/run/timeline.hpp"

namespace oomcast {

// What of one KV pool requests hold, and what of it is kept only for later hits, in its own units:
// blocks or slots.
struct PoolUse {
  std::int64_t used = 0;
  std::int64_t cached = 0;
};
// Layers that keep a window alone can have a pool of their own.
inline constexpr std::size_t kMostPools = 2;
using KvUse = std::array<PoolUse, kMostPools>;
using UnitBytes = std::array<Bytes, kMostPools>;

// What requests hold in a pool for a transfer alone, a part of what is used; in the pool's units.
struct TransferHold {
  std::int64_t requests = 0;
  std::int64_t units = 0;
};

// What a timeline row says besides memory.
struct ServingCounts {
  KvUse kv;
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t preemptions = 0;
  std::optional<TransferHold> transfer = {};  // servers of one role
  std::optional<Bytes> host_used = {};        // a rank's part, with a host tier
};

class RankBooks {
 public:
  // `rank` must outlive the books; `units`: bytes of one unit of each pool.
  RankBooks(RankState& rank, std::unique_ptr<StepMemory> steps, const UnitBytes& units);

  // Posts the tensors of steps. Returns the outcome if the card has no room for them.
  std::optional<Outcome> run(const StepRun& steps);
  // Whether steps of this shape may be run as one.
  [[nodiscard]] bool repeats(Tokens tokens, std::int64_t rows) const {
    return steps_->repeats(tokens, rows);
  }
  // No step runs: the next rows say so.
  void rest() { step_tokens_ = Tokens{}; }
  [[nodiscard]] bool shows_failure() const { return steps_->shows_failure(); }
  // Rows of the timeline for the step run last.
  void sample(SimTime at, const ServingCounts& counts);

  // Whether requests would hold less than in any row of the latest one's bucket.
  [[nodiscard]] bool is_lowest(const KvUse& kv) const { return used_bytes(kv) < lowest_; }

  // End of the bucket of `at`: until then one first and one last row of like steps are enough.
  [[nodiscard]] SimTime bucket_end(SimTime at) const { return timeline_.bucket_end(at); }
  [[nodiscard]] Bytes used_bytes(const KvUse& kv) const;
  [[nodiscard]] Bytes pool_bytes() const;
  // Recounts the books and hands over what was recorded.
  [[nodiscard]] RankRecord finish();

 private:
  RankState& rank_;
  std::unique_ptr<StepMemory> steps_;
  UnitBytes units_;
  Timeline timeline_;
  Tokens step_tokens_;
  TimelineRow row_;          // the latest
  Bytes lowest_;             // used in rows of its bucket
  SimTime lowest_until_;     // the end of that
  std::uint64_t shown_ = 0;  // postings of the steps whose memory it has
};

}  // namespace oomcast
