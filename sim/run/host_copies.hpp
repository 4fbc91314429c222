// Copies between the cards and pinned host memory beside the steps of an engine: two queues, one a
// direction, each as fast as a card's host link. All cards move their share of a copy at once.
//
//   start = copies.begin(start);      // loads begin, and what the step must wait for is waited for
//   took += copies.stalls(start, took);  // ... while it runs
//   copies.launched(end);             // stores planned by now begin when it is over
//   copies.advance(now);              // over(): copies that ended by now
//
// As the workers of vLLM do it (v1/kv_offload/cpu/gpu_worker.py, 0.33.0): in order within a
// direction, a store after the step's computation, a load without waiting for any. A worker that is
// a step ahead of its card could begin loads up to a step sooner than here.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "sim/core/digest.hpp"
#include "sim/latency/fine_time.hpp"
#include "sim/run/record.hpp"

namespace oomcast {

class HostCopies {
 public:
  using Job = std::int64_t;
  struct Copy {
    Job job = 0;
    Bytes link;   // on each card's link
    Bytes total;  // on all links together
  };

  // Bytes per second of a card's link in one direction, above 0.
  HostCopies(Bytes pool, double link_speed) : speed_(link_speed) { totals_.pool = pool; }

  // What the round just scheduled asks for. `before_step`: its step waits for the end.
  void load(const Copy& copy, Tokens tokens, bool before_step);
  // ... of a step that reads `layers` layers one after the other, each as soon as it is there.
  void load_by_layer(const Copy& copy, Tokens tokens, std::int64_t layers);
  void store(const Copy& copy) { stores_.push_back(copy); }
  // Begins with the round's step, not after it.
  void store_at_start(const Copy& copy) { early_stores_.push_back(copy); }
  void flush(Job job) { flushes_.push_back(job); }
  // Of the tier, as the round leaves it; a card's part.
  void hold(Bytes total, Bytes card);

  // The step could start then; when it can. Stores that it must wait for begin at once.
  [[nodiscard]] FineSpan begin(FineSpan start);
  // How much longer a step takes that begins then and computes for `took`, for layers that come
  // late.
  [[nodiscard]] FineSpan stalls(FineSpan start, FineSpan took);
  void launched(FineSpan end);
  void advance(FineSpan now);

  // Jobs over and not yet taken note of, in order of their numbers.
  [[nodiscard]] const std::vector<Job>& over() const { return over_; }
  void clear_over() { over_.clear(); }
  // When the next copy under way ends.
  [[nodiscard]] std::optional<FineSpan> next_end() const;

  [[nodiscard]] Bytes held_by_card() const { return held_by_card_; }
  [[nodiscard]] const HostTierTotals& totals() const { return totals_; }

 private:
  struct UnderWay {
    Job job = 0;
    FineSpan end;
  };
  // One direction.
  struct Queue {
    std::deque<UnderWay> copies;  // in order of their ends
    FineSpan free_from;
  };

  struct Load {
    Copy copy;
    bool before_step = false;
    std::int64_t layers = 0;  // 0: not read layer by layer
  };
  struct LayeredLoad {
    FineSpan start;
    FineSpan end;
    std::int64_t layers = 1;
  };

  void add_load(const Load& load, Tokens tokens);
  FineSpan add(Queue& queue, const Copy& copy, FineSpan from);
  void start_store(const Copy& copy, FineSpan from);
  void take_over(Queue& queue, FineSpan now);
  [[nodiscard]] FineSpan end_of(Job job, FineSpan otherwise) const;

  double speed_;
  Queue to_card_;
  Queue to_host_;
  // Of the round just scheduled.
  std::vector<Load> loads_;
  std::vector<Copy> stores_;
  std::vector<Copy> early_stores_;
  std::vector<Job> flushes_;
  std::optional<LayeredLoad> layered_;

  std::vector<Job> over_;
  Bytes held_by_card_;
  HostTierTotals totals_;
};

void add_to_digest(Digest& digest, const HostTierTotals& totals);

}  // namespace oomcast
