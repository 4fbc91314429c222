#include "sim/cluster/router.hpp"

namespace oomcast::cluster {

std::optional<RoutePolicy> route_policy_of(std::string_view name) {
  if (name == "round-robin") {
    return RoutePolicy::kRoundRobin;
  }
  if (name == "least-loaded") {
    return RoutePolicy::kLeastLoaded;
  }
  return std::nullopt;
}

std::optional<std::size_t> Router::pick(const std::vector<ServerLoad>& pool) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < pool.size(); ++i) {
    const std::size_t server = policy_ == RoutePolicy::kRoundRobin ? (next_ + i) % pool.size() : i;
    if (!pool[server].alive) {
      continue;
    }
    if (policy_ == RoutePolicy::kRoundRobin) {
      next_ = server + 1;
      return server;
    }
    if (!best || pool[server].outstanding < pool[*best].outstanding) {
      best = server;
    }
  }
  return best;
}

}  // namespace oomcast::cluster
