// Which server of a pool gets a request.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace oomcast::cluster {

enum class RoutePolicy : std::uint8_t {
  kRoundRobin,
  kLeastLoaded,  // least outstanding; of equals the first
};

// By the names of --router; nullopt for any other.
std::optional<RoutePolicy> route_policy_of(std::string_view name);

// One server as a router sees it.
struct ServerLoad {
  bool alive = true;
  std::int64_t outstanding = 0;  // prefill: prompt tokens to come; decode: requests
};

class Router {
 public:
  explicit Router(RoutePolicy policy) : policy_(policy) {}
  // nullopt: no server is alive.
  std::optional<std::size_t> pick(const std::vector<ServerLoad>& pool);

 private:
  RoutePolicy policy_;
  std::size_t next_ = 0;
};

}  // namespace oomcast::cluster
