// One engine on the clock: its scheduler's rounds, one by one or many alike at once, the batches in
// its pipeline, and the memory of its ranks.
//
// A round is schedule_round() and then, once the pipeline is full, take_results(). Whoever drives
// loops calls the half that next_at() and pipeline_full() speak of, after all that reaches the
// engine from outside by then.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "sim/core/digest.hpp"
#include "sim/run/rank_books.hpp"
#include "sim/run/serving_engine.hpp"

namespace oomcast {

// Hears what becomes of requests.
class RoundListener {
 public:
  virtual ~RoundListener() = default;
  virtual void admitted(const Admission& admission, SimTime at) = 0;
  virtual void preempted(RequestId id) = 0;
  virtual void first_token(RequestId id, SimTime at) = 0;
  virtual void ended(const EndedRequest& request, SimTime at) = 0;
  // Whether somebody waits for ends: what comes from outside next is not known before they are
  // told.
  [[nodiscard]] virtual bool answers_ends() const = 0;
};

struct LoopTotals {
  std::int64_t steps = 0;
  Bytes kv_peak;  // most bytes of blocks held by requests, on the first rank
  SimTime kv_peak_at;
};

class EngineLoop {
 public:
  // All must outlive the loop. `digest` takes the tokens of each step.
  EngineLoop(ServingEngine& engine, const StepTimeModel& model, std::vector<RankBooks> books,
             RoundListener& listener, Digest& digest);

  // Nothing more can happen before this instant.
  [[nodiscard]] FineSpan next_at() const;
  [[nodiscard]] FineSpan now() const { return now_; }
  [[nodiscard]] bool pipeline_full() const {
    return engine_.batches_in_flight() == engine_.depth();
  }

  // False when nothing will ever happen until something comes from outside: then sleep().
  bool schedule_round();
  void take_results();
  // End of the batch launched last; there must be one.
  [[nodiscard]] FineSpan last_end() const { return ends_.back(); }
  // It ends no earlier: replicas that step together wait for each other.
  void stretch(FineSpan end);
  // The engine's loop turns without work; it goes on when somebody wakes it.
  void sleep();
  void wake(FineSpan at);
  // When the next copy to or from a host tier ends, which an engine without work waits for.
  [[nodiscard]] std::optional<FineSpan> next_copy_end() const;

  // Passes as many like rounds as end before `until`, when something may come from outside (absent:
  // never), and before the next copy to or from a host tier ends, within one bucket of the
  // timeline. False when there are none.
  bool jump(std::optional<FineSpan> until);

  // What ended the engine.
  [[nodiscard]] const std::optional<Outcome>& failure() const { return failure_; }
  void fail(const Outcome& outcome);

  [[nodiscard]] const LoopTotals& totals() const { return totals_; }
  [[nodiscard]] Bytes pool_bytes() const { return books_.front().pool_bytes(); }
  // Closes the books; the digest takes them.
  [[nodiscard]] std::vector<RankRecord> finish();

 private:
  void launch(const Round& round, FineSpan start);
  void tell(const RoundResults& results);
  void post(const StepRun& run, const KvUse& kv, std::int64_t running, std::int64_t waiting);
  void sample(SimTime at, const KvUse& kv, std::int64_t running, std::int64_t waiting);
  [[nodiscard]] bool reaches_low(const KvUse& kv) const;
  bool sets_peak(const KvUse& kv);
  // Time of a step of `requests` decodes and nothing else; remembered, as most steps are of this
  // kind and few sizes.
  const StepTime& decode_time(std::int64_t requests, Tokens context);
  [[nodiscard]] std::int64_t before(std::optional<FineSpan> until, const StepTime& time,
                                    Tokens context, Tokens growth, std::int64_t steps,
                                    FineSpan start) const;

  ServingEngine& engine_;
  const EngineDeployment& deployment_;
  const StepTimeModel& model_;
  std::vector<RankBooks> books_;
  RoundListener& listener_;
  Digest& digest_;
  LoopTotals totals_;
  std::optional<Outcome> failure_;
  FineSpan now_;                                       // when the next batch is scheduled
  FineSpan free_from_;                                 // when the first stage can start another
  std::vector<std::optional<StepTime>> decode_times_;  // by number of requests
  std::deque<FineSpan> ends_;                          // of the batches in flight
};

}  // namespace oomcast
