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
#include "sim/run/host_copies.hpp"
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
  // Their first output token came with the KV that another server computed.
  std::span<const RequestId> handed_token = {};
};

struct RoundResults {
  std::span<const RequestId> first_token;
  std::span<const EndedRequest> ended;

  [[nodiscard]] bool empty() const { return first_token.empty() && ended.empty(); }
};

// The pools in the first and in the last of many like rounds, in which requests only take from
// them. But results of a batch that was in flight come with the first: what they give back is back
// in the second.
struct SteadyUse {
  KvUse first;
  KvUse last;
  std::int64_t last_growth = 0;  // the round, from 0, since which requests hold what they last hold
  RoundResults results = {};
  KvUse second = {};  // with results
};

// KV that one server computes and another goes on with: what a server of one role hears from the
// other side, and what it tells it.
class KvHandoff {
 public:
  enum class Role : std::uint8_t { kPrefill, kDecode };
  // KV of the prompt up to here can leave; `last`: the whole prompt's.
  struct Piece {
    RequestId id = 0;
    Tokens upto;
    bool last = false;
  };

  // KV that the decode side waits for: of so many tokens, the rest it has itself.
  struct Want {
    RequestId id = 0;
    Tokens tokens;
  };

  virtual ~KvHandoff() = default;
  // Whether the decode side hears of a request once its prompt is done, and pulls; else both sides
  // hear of it at once, and prefill waits until the other side has room.
  [[nodiscard]] virtual bool prefill_first() const = 0;
  // How long the prefill side keeps KV whose decode server is gone, from then on.
  [[nodiscard]] virtual Nanos lease() const = 0;

  // Prefill: the other side has room. Decode: the other side knows of the request.
  virtual void agreed(RequestId id) = 0;
  // All KV is over: prefill lets go of it, decode goes on with it.
  virtual void transferred(RequestId id) = 0;
  // It is lost on the way. Whether this side deals with that itself, by its own policy; else it
  // must give up.
  virtual bool lost(RequestId id) = 0;
  // The request is not wanted here any more. Whoever is here no more is passed over.
  virtual void give_up(RequestId id) = 0;

  // News since the last call of clear_news(), in order. Prefill: what can leave. Decode: who has
  // room for the KV and waits for it.
  [[nodiscard]] virtual std::span<const Piece> pieces() const = 0;
  [[nodiscard]] virtual std::span<const Want> wants() const = 0;
  virtual void clear_news() = 0;

  // Requests that hold KV for a transfer alone: prefill, prompts done and not yet over; decode, on
  // their way. Tokens in whole pages.
  [[nodiscard]] virtual TransferHold held() const = 0;
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
  // The client gave the request up. Unless its output is told at once, it ends with the results of
  // a round, as aborted or, with its last token on the way, as finished.
  virtual Abort abort(RequestId id) = 0;
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

  // Serves as one side of a pair from now on. False: its deployment cannot.
  virtual bool take_role(KvHandoff::Role /*role*/) { return false; }
  // Of a server that took a role; nullptr for others.
  [[nodiscard]] virtual KvHandoff* handoff() { return nullptr; }

  // KV copies between the cards and a host tier; nullptr for a server without one.
  [[nodiscard]] virtual HostCopies* host_copies() { return nullptr; }

  // Of one of several data-parallel replicas: whether all run their steps together, and how loaded
  // a front end takes it to be (nothing: requests go to replicas in turn).
  [[nodiscard]] virtual bool steps_with_replicas() const { return false; }
  [[nodiscard]] virtual std::optional<std::int64_t> load() const { return std::nullopt; }

  [[nodiscard]] virtual std::int64_t running() const = 0;
  [[nodiscard]] virtual std::int64_t waiting() const = 0;
  [[nodiscard]] virtual std::int64_t preemptions() const = 0;
  [[nodiscard]] virtual Tokens prefix_hit_tokens() const = 0;
};

// Adds what of the deployment can be planned but not replayed, at this depth.
void check_replay(const AnyDeployment& deployment, Detail detail, Problems& problems);
// The same for one server of a cluster, which may have one role alone and no replicas.
void check_member(const AnyDeployment& deployment, Detail detail, Problems& problems);

std::unique_ptr<ServingEngine> make_serving_engine(Plan plan);
std::unique_ptr<ServingEngine> serve(Plan::Vllm plan);
std::unique_ptr<ServingEngine> serve(Plan::Sglang plan);
std::unique_ptr<ServingEngine> serve(Plan::Trtllm plan);

}  // namespace oomcast
