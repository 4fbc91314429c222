#include "sim/cluster/traffic.hpp"

namespace oomcast::cluster {

void Traffic::pass(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kAgreed:
      if (fleet_[event.server].alive && find(event.request) != nullptr) {
        fleet_[event.server].handoff().agreed(event.request);
        fleet_[event.server].wake(now());
      }
      break;
    case Event::Kind::kSetUp:
      if (Journey* journey = find(event.request)) {
        journey->open = true;
        pump(event.request, *journey);
      }
      break;
    case Event::Kind::kFault:
      inject(setup_.faults[event.number]);
      break;
    case Event::Kind::kSpeedAgain:
      fabric_.slow(event.server, share_left(event.server), now());
      break;
    case Event::Kind::kLeaseOver:
      if (fleet_[event.server].alive) {
        fleet_[event.server].handoff().transferred(event.request);
        fleet_[event.server].wake(now());
      }
      break;
  }
}

// In the order in which they were sent.
template <typename Meant>
std::vector<RequestId> Traffic::those(const Meant& meant) const {
  std::vector<RequestId> ids;
  for (const auto& [id, journey] : journeys_) {
    if (meant(journey)) {
      ids.push_back(id);
    }
  }
  return ids;
}

void Traffic::inject(const Fault& fault) {
  const std::size_t number = fleet_.number_of(fault.role, fault.server);
  switch (fault.kind) {
    case Fault::Kind::kKill:
      return kill(number);
    case Fault::Kind::kDrop:
      return drop(number);
    case Fault::Kind::kSlow:
      fabric_.slow(number, share_left(number), now());
      if (fault.until) {
        calendar_.write({since_start(*fault.until), Event::Kind::kSpeedAgain, number, 0, 0});
      }
      return;
  }
}

// Of the rate of a server's links, now.
double Traffic::share_left(std::size_t number) const {
  const Fault* last = nullptr;
  for (const Fault& fault : setup_.faults) {
    if (fault.kind == Fault::Kind::kSlow && fleet_.number_of(fault.role, fault.server) == number &&
        since_start(fault.at) <= now() && (!fault.until || now() < since_start(*fault.until)) &&
        (last == nullptr || last->at <= fault.at)) {
      last = &fault;
    }
  }
  return last == nullptr ? 1 : last->share;
}

void Traffic::kill(std::size_t number) {
  fleet_[number].alive = false;
  fleet_[number].awake = false;
  for (const RequestId id : those([&](const Journey& journey) {
         return journey.decode == number || (journey.prefill == number && !journey.handed_over);
       })) {
    if (journeys_.at(id).decode == number) {
      lose(id, RequestOutcome::kFailed);
    } else {
      fail_transfer(id);
    }
  }
}

void Traffic::drop(std::size_t number) {
  for (const RequestId id : those([&](const Journey& journey) {
         return journey.flow && (journey.decode == number || journey.prefill == number);
       })) {
    fail_transfer(id);
  }
}

}  // namespace oomcast::cluster
