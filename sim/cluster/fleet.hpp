// The servers of a cluster: prefill servers first, then decode servers, each with its engine and
// loop; and the routers that pick among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/cluster/fabric.hpp"
#include "sim/cluster/router.hpp"
#include "sim/run/engine_loop.hpp"

namespace oomcast::cluster {

// What servers say to the cluster.
class ServerListener {
 public:
  virtual ~ServerListener() = default;
  virtual void admitted(const Admission& admission, SimTime at) = 0;  // by a prefill server
  virtual void preempted(RequestId id) = 0;
  virtual void first_token(RequestId id, SimTime at) = 0;  // from a decode server
  virtual void ended(std::size_t server, const EndedRequest& request, SimTime at) = 0;
};

class Server final : public RoundListener {
 public:
  using Role = KvHandoff::Role;
  // `listener` must outlive the server.
  Server(ServerListener& listener, std::size_t number, const Pool& pool, Role role);

  void admitted(const Admission& admission, SimTime at) override;
  void preempted(RequestId id) override;
  void first_token(RequestId id, SimTime at) override;
  void ended(const EndedRequest& request, SimTime at) override;
  [[nodiscard]] bool answers_ends() const override { return true; }

  [[nodiscard]] Role role() const { return role_; }
  [[nodiscard]] ServingEngine& engine() { return *engine_; }
  [[nodiscard]] EngineLoop& loop() { return loop_; }
  [[nodiscard]] KvHandoff& handoff() { return *engine_->handoff(); }

  // Of its steps: other servers' may lie between them in time, not in the order of the run.
  [[nodiscard]] const Digest& digest() const { return digest_; }

  void wake(FineSpan at) {
    loop_.wake(at);
    awake = alive;
  }

  bool alive = true;
  bool awake = false;
  std::int64_t outstanding = 0;  // see ServerLoad

 private:
  ServerListener& listener_;
  std::size_t number_;
  Role role_;
  Digest digest_;
  std::unique_ptr<ServingEngine> engine_;
  EngineLoop loop_;
};

class Fleet {
 public:
  using Role = KvHandoff::Role;
  // Without servers where a startup failed. `listener` must outlive the fleet.
  Fleet(const ClusterSetup& setup, ServerListener& listener);

  [[nodiscard]] std::size_t size() const { return servers_.size(); }
  [[nodiscard]] Server& operator[](std::size_t number) { return *servers_[number]; }

  [[nodiscard]] std::size_t number_of(Role role, std::size_t in_pool) const {
    return role == Role::kPrefill ? in_pool : prefills_ + in_pool;
  }
  // Ranks count on from server to server.
  [[nodiscard]] std::int64_t first_rank(std::size_t number) const;
  // Where the next request goes; nullopt: no server of the role is alive.
  std::optional<std::size_t> route(Role role);

 private:
  void add(const Pool& pool, Role role, ServerListener& listener);

  std::size_t prefills_;
  std::int64_t prefill_cards_;
  std::int64_t decode_cards_;
  Router prefill_router_;
  Router decode_router_;
  std::vector<std::unique_ptr<Server>> servers_;
};

// The servers as the fabric sees them, by number.
std::vector<Placed> placed(const ClusterSetup& setup);

}  // namespace oomcast::cluster
