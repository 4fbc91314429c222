#include "sim/cluster/traffic.hpp"

#include <algorithm>
#include <utility>

#include "sim/core/error.hpp"

namespace oomcast::cluster {

Traffic::Traffic(const ClusterSetup& setup, RequestDesk& desk, Calendar& calendar)
    : setup_(setup),
      desk_(desk),
      calendar_(calendar),
      fabric_(setup.fabric, placed(setup), network_),
      fleet_(setup, *this) {}

void Traffic::audit() const {
  custody_.audit();
  OOMCAST_CHECK(flows_.size() == network_.flows(), "{} flows of {} requests", network_.flows(),
                flows_.size());
}

void Traffic::arrive(const workloads::TraceRequest& request) {
  if (request.patience) {
    throw ConfigError(Problem{"workload", "cancel_after_s, patience or --timeout", "given",
                              "clients that wait for their answers",
                              "giving up is not modelled in a cluster yet"});
  }
  Journey journey;
  journey.request = request;
  send(std::move(journey));
}

// Where the decode side pulls, the router sends a request there once its prompt is done; else to
// both sides at once.
void Traffic::send(Journey journey) {
  const std::int64_t index = journey.request.index;
  const auto prefill = fleet_.route(Role::kPrefill);
  if (!prefill) {
    return desk_.finish(index, RequestOutcome::kFailed, Tokens{0}, instant(now()));
  }
  journey.prefill = *prefill;
  const RequestId id = next_id_++;
  Server& sender = fleet_[*prefill];
  sender.wake(now());
  if (const auto refusal = sender.engine().add(journey.request, id)) {
    return desk_.refuse(index, *refusal, instant(now()));
  }
  sender.outstanding += journey.request.input.count();
  journeys_.emplace(id, std::move(journey));
  if (!sender.handoff().prefill_first()) {
    send_on(id);
  }
}

// To a decode server.
void Traffic::send_on(RequestId id) {
  Journey& journey = journeys_.at(id);
  const auto decode = fleet_.route(Role::kDecode);
  if (!decode) {
    return lose(id, RequestOutcome::kFailed);
  }
  Server& receiver = fleet_[*decode];
  receiver.wake(now());
  if (const auto refusal = receiver.engine().add(journey.request, id)) {
    return lose(id, *refusal);
  }
  journey.decode = *decode;
  ++receiver.outstanding;
  calendar_.write({now() + FineSpan{fabric_.latency()}, Event::Kind::kAgreed, *decode, id, 0});
}

Journey* Traffic::find(RequestId id) {
  const auto place = journeys_.find(id);
  return place == journeys_.end() ? nullptr : &place->second;
}
RequestRow* Traffic::row_of(RequestId id) {
  const Journey* journey = find(id);
  return journey == nullptr ? nullptr : &desk_.row(journey->request.index);
}

void Traffic::admitted(const Admission& admission, SimTime at) {
  RequestRow* row = row_of(admission.id);
  if (row != nullptr && row->first_scheduled == RequestRow::kNever) {
    row->first_scheduled = at;
    row->cached = admission.hit;
  }
}
void Traffic::preempted(RequestId id) {
  if (RequestRow* row = row_of(id)) {
    ++row->preemptions;
  }
}
void Traffic::first_token(RequestId id, SimTime at) {
  RequestRow* row = row_of(id);
  if (row != nullptr && row->first_token == RequestRow::kNever) {
    row->first_token = at;
  }
}

// A prefill server is through with its part when the prompt is done (and pulled), or all KV is
// over, not before.
void Traffic::ended(std::size_t number, const EndedRequest& request, SimTime at) {
  const Journey* journey = find(request.id);
  if (journey == nullptr) {
    return;
  }
  if (number == journey->prefill) {
    if (!journey->handed_over && request.outcome != RequestOutcome::kFinished) {
      lose(request.id, request.outcome);
    }
    return;
  }
  if (request.outcome != RequestOutcome::kFinished) {
    return lose(request.id, request.outcome);
  }
  const RequestRow& row = desk_.row(journey->request.index);
  const Tokens most = setup_.decode.plan.deployment().max_model_len - row.input;
  desk_.finish(row.index, request.outcome, request.output.value_or(std::min(row.output, most)), at);
  leave(request.id);
}

// Takes it off the books of servers and network.
Journey Traffic::leave(RequestId id) {
  const auto place = journeys_.find(id);
  Journey journey = std::move(place->second);
  journeys_.erase(place);
  stop_flow(journey);
  custody_.release(journey.shares);
  if (!journey.prompt_done) {
    fleet_[journey.prefill].outstanding -= journey.request.input.count();
  }
  if (journey.decode) {
    --fleet_[*journey.decode].outstanding;
  }
  return journey;
}

// Its servers are lost, or one of them dropped it. The router sends it anew while its client has
// not seen a token.
void Traffic::lose(RequestId id, RequestOutcome outcome) {
  Journey journey = leave(id);
  if (!journey.handed_over) {
    totals_.lost += journey.has_room ? 1 : 0;
    give_up_prefill(id, journey);
  }
  if (journey.decode && fleet_[*journey.decode].alive) {
    fleet_[*journey.decode].handoff().give_up(id);
    fleet_[*journey.decode].wake(now());
  }
  const std::int64_t index = journey.request.index;
  RequestRow& row = desk_.row(index);
  // A step that was scheduled ahead of the one under way never began.
  if (row.first_scheduled != RequestRow::kNever && row.first_scheduled > instant(now())) {
    row.first_scheduled = RequestRow::kNever;
    row.cached = Tokens{0};
  }
  if (outcome == RequestOutcome::kFailed && journey.attempt < setup_.retries &&
      row.first_token == RequestRow::kNever) {
    ++totals_.retried;
    Journey again;
    again.request = std::move(journey.request);
    again.attempt = journey.attempt + 1;
    return send(std::move(again));
  }
  if (outcome == RequestOutcome::kFailed || outcome == RequestOutcome::kAborted) {
    return desk_.finish(index, outcome, Tokens{0}, instant(now()));
  }
  desk_.refuse(index, outcome, instant(now()));
}

// What is kept for a decode server that is gone stays until its lease is over.
void Traffic::give_up_prefill(RequestId id, const Journey& journey) {
  Server& server = fleet_[journey.prefill];
  if (!server.alive) {
    return;
  }
  if (server.handoff().prefill_first() && journey.prompt_done) {
    calendar_.write({now() + FineSpan{server.handoff().lease()}, Event::Kind::kLeaseOver,
                     journey.prefill, id, 0});
    return;
  }
  server.handoff().give_up(id);
  server.wake(now());
}

}  // namespace oomcast::cluster
