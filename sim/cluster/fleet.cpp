#include "sim/cluster/fleet.hpp"

#include <algorithm>

#include "sim/cluster/pairing.hpp"
#include "sim/core/error.hpp"

namespace oomcast::cluster {

Server::Server(ServerListener& listener, std::size_t number, const Pool& pool, Role role)
    : listener_(listener),
      number_(number),
      role_(role),
      engine_(make_serving_engine(pool.plan)),
      loop_(*engine_, *pool.step_times, engine_->open_books(Detail::kClasses, true), *this,
            digest_) {
  OOMCAST_CHECK(engine_->take_role(role), "server {} has another role", number);
}

void Server::admitted(const Admission& admission, SimTime at) {
  if (role_ == Role::kPrefill) {
    listener_.admitted(admission, at);
  }
}

void Server::preempted(RequestId id) { listener_.preempted(id); }

void Server::first_token(RequestId id, SimTime at) {
  if (role_ == Role::kDecode) {
    listener_.first_token(id, at);
  }
}

void Server::ended(const EndedRequest& request, SimTime at) {
  listener_.ended(number_, request, at);
}

Fleet::Fleet(const ClusterSetup& setup, ServerListener& listener)
    : prefills_(static_cast<std::size_t>(setup.prefill.servers)),
      prefill_cards_(cards(setup.prefill.plan.deployment())),
      decode_cards_(cards(setup.decode.plan.deployment())),
      prefill_router_(setup.route),
      decode_router_(setup.route) {
  if (setup.prefill.plan.outcome().fits() && setup.decode.plan.outcome().fits()) {
    add(setup.prefill, Role::kPrefill, listener);
    add(setup.decode, Role::kDecode, listener);
  }
}

void Fleet::add(const Pool& pool, Role role, ServerListener& listener) {
  for (std::int64_t i = 0; i < pool.servers; ++i) {
    servers_.push_back(std::make_unique<Server>(listener, servers_.size(), pool, role));
  }
}

std::int64_t Fleet::first_rank(std::size_t number) const {
  const auto before = static_cast<std::int64_t>(std::min(number, prefills_));
  const auto behind = static_cast<std::int64_t>(number) - before;
  return before * prefill_cards_ + behind * decode_cards_;
}

std::optional<std::size_t> Fleet::route(Role role) {
  const std::size_t first = number_of(role, 0);
  const std::size_t end = role == Role::kPrefill ? prefills_ : servers_.size();
  std::vector<ServerLoad> pool;
  for (std::size_t i = first; i < end; ++i) {
    pool.push_back({servers_[i]->alive, servers_[i]->outstanding});
  }
  Router& router = role == Role::kPrefill ? prefill_router_ : decode_router_;
  const auto picked = router.pick(pool);
  return picked ? std::optional(first + *picked) : std::nullopt;
}

std::vector<Placed> placed(const ClusterSetup& setup) {
  std::vector<Placed> servers;
  for (const Pool* pool : {&setup.prefill, &setup.decode}) {
    const EngineDeployment& deployment = pool->plan.deployment();
    servers.insert(
        servers.end(), static_cast<std::size_t>(pool->servers),
        {cards(deployment), pool == &setup.decode ? 1 : 0, deployment.gpu.nvlink_bandwidth / 2});
  }
  return servers;
}

}  // namespace oomcast::cluster
