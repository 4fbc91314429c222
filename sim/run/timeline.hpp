// The timeline of one rank, bounded in memory whatever the length of the run.
//
// Time is cut into buckets of equal width. A bucket keeps its first and last row and the rows of
// its extremes, so thinning never loses a peak. When the run outgrows the buckets, the width
// doubles and neighbours merge; all kept rows are chosen by associative rules (a maximum prefers
// the later of equals, a minimum the earlier), so the result does not depend on how often that
// happened, nor on whether rows between the ends of a uniform stretch were offered.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/core/digest.hpp"
#include "sim/core/units.hpp"
#include "sim/ledger/ledger.hpp"

namespace oomcast {

// As torch.cuda.memory_stats() counts them: expandable segments in neither.
struct SegmentCounts {
  Bytes inactive_split;  // free parts of segments in use
  std::int64_t segments = 0;
};

// Of a server of one role.
struct TransferCounts {
  Bytes kv_held;  // kept for a transfer alone; a shared prefix counts for each
  std::int64_t requests = 0;
};

struct TimelineRow {
  SimTime at;
  LeafBytes device{};  // sums to views.device_used
  MemoryViews views;
  Bytes kv_used;    // blocks held by requests
  Bytes kv_cached;  // free blocks whose content can still be hit
  Bytes kv_free;    // the rest of the pool
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t step_tokens = 0;
  std::int64_t preemptions = 0;            // so far
  std::optional<SegmentCounts> torch;      // at the allocator's depth
  std::optional<TransferCounts> transfer;  // prefill and decode servers
  std::optional<Bytes> host_used;          // with a host tier: of pinned host memory, what holds KV
};

class Timeline {
 public:
  static constexpr std::size_t kBuckets = 1024;

  Timeline();

  // Rows must come in order of time. `same_memory`: the memory is that of the row before.
  void offer(const TimelineRow& row, bool same_memory = false);

  // Start of the bucket after the one that holds `at`: a stretch of like steps is offered up to
  // here, with its first and last row.
  [[nodiscard]] SimTime bucket_end(SimTime at) const;

  // Kept rows in order, each once.
  [[nodiscard]] std::vector<TimelineRow> rows() const;

 private:
  // What a bucket keeps an extreme of.
  enum Measure : std::size_t {
    kDevice,
    kAllocated,
    kKv,
    kRunning,
    kWaiting,
    kStepTokens,
    kLeastKv
  };
  static constexpr std::size_t kMeasures = 7;
  using Values = std::array<std::int64_t, kMeasures>;

  struct Extreme {
    std::uint64_t sequence = 0;  // of the row; that of `last` while the row lies there
    std::int64_t value = 0;      // larger wins; negated where a minimum is kept
    TimelineRow row;
  };
  struct Bucket {
    std::uint64_t first_sequence = 0;  // 0: empty
    std::uint64_t last_sequence = 0;
    TimelineRow first;
    TimelineRow last;
    std::array<Extreme, kMeasures> extremes;
  };

  static Values values_of(const TimelineRow& row);
  // Whether a later `candidate` takes the place of `held`.
  static bool wins(std::size_t measure, std::int64_t candidate, std::int64_t held);
  static void settle(Bucket& bucket);
  static void merge(Bucket& into, Bucket& later);
  void widen();
  void move_to(std::int64_t at);

  std::int64_t width_;
  std::uint64_t offered_ = 0;
  std::vector<Bucket> buckets_;
  // The bucket of the latest row and its nanoseconds.
  std::size_t current_ = 0;
  std::int64_t begin_ = 0;
  std::int64_t end_ = 0;
};

void add_to_digest(Digest& digest, const TimelineRow& row);

}  // namespace oomcast
