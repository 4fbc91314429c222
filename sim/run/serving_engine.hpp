// An engine as the serving loop drives it: its scheduler, and the memory that its startup left on
// each rank. One implementation an engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/engines/deployment.hpp"
#include "sim/engines/scheduling.hpp"
#include "sim/run/plan.hpp"
#include "sim/run/rank_books.hpp"
#include "sim/run/record.hpp"
#include "sim/run/step_memory.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast {

struct EndedRequest {
  RequestId id = 0;
  RequestOutcome outcome = RequestOutcome::kFinished;
  std::optional<Tokens> output;  // absent: as much as it asked for within the model's length
};

// What a round schedules. Valid until the next call of the engine.
struct Round {
  const StepTotals& totals;
  std::span<const Admission> admitted;
  std::span<const RequestId> preempted;   // lost their place, wait again
  std::span<const EndedRequest> dropped;  // end without another step
  KvUse kv;                               // while the step executes
  const Outcome* failure = nullptr;       // the engine dies of this round
};

struct RoundResults {
  std::span<const RequestId> first_token;
  std::span<const EndedRequest> ended;
};

// The pools in the first and in the last of many like rounds.
struct SteadyUse {
  KvUse first;
  KvUse last;
};

// Rounds are schedule() and then, once the pipeline is full, complete(): see the schedulers.
class ServingEngine {
 public:
  ServingEngine() = default;
  virtual ~ServingEngine() = default;
  ServingEngine(const ServingEngine&) = delete;
  ServingEngine& operator=(const ServingEngine&) = delete;
  ServingEngine(ServingEngine&&) = delete;
  ServingEngine& operator=(ServingEngine&&) = delete;

  [[nodiscard]] virtual const EngineDeployment& deployment() const = 0;
  [[nodiscard]] virtual const Outcome& startup() const = 0;
  // One for each rank that behaves in its own way, in order. The engine must outlive them.
  [[nodiscard]] virtual std::vector<RankBooks> open_books(Detail detail, bool remembers) = 0;

  // Nothing: the request is queued as `id`, its index. Else it is refused for good.
  virtual std::optional<RequestOutcome> add(const workloads::TraceRequest& request,
                                            RequestId id) = 0;
  virtual Round schedule() = 0;
  // Results of the oldest batch in flight; there must be one.
  virtual RoundResults complete() = 0;
  // Nothing is left to do until a request arrives: the engine's own loop goes on without work.
  virtual void fall_idle() = 0;

  [[nodiscard]] virtual std::int64_t depth() const = 0;
  [[nodiscard]] virtual std::int64_t batches_in_flight() const = 0;
  [[nodiscard]] virtual bool idle() const = 0;
  // After a round without a batch: nothing will ever happen until a request arrives.
  [[nodiscard]] virtual bool stalled() const = 0;
  // What a run says of that.
  [[nodiscard]] virtual Outcome stall_outcome() const = 0;

  // See the schedulers' functions of the same names.
  [[nodiscard]] virtual std::int64_t steady_steps() const = 0;
  [[nodiscard]] virtual SteadyShape steady_shape() const = 0;
  virtual SteadyUse advance_steady(std::int64_t rounds) = 0;

  [[nodiscard]] virtual std::int64_t running() const = 0;
  [[nodiscard]] virtual std::int64_t waiting() const = 0;
  [[nodiscard]] virtual std::int64_t preemptions() const = 0;
  [[nodiscard]] virtual Tokens prefix_hit_tokens() const = 0;
};

// Adds what of the deployment can be planned but not replayed, at this depth.
void check_replay(const AnyDeployment& deployment, Detail detail, Problems& problems);

std::unique_ptr<ServingEngine> make_serving_engine(Plan plan);
std::unique_ptr<ServingEngine> serve(Plan::Vllm plan);
std::unique_ptr<ServingEngine> serve(Plan::Sglang plan);
std::unique_ptr<ServingEngine> serve(Plan::Trtllm plan);

}  // namespace oomcast
